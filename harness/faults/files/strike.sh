# Functions for the steps in grammar.yaml. `k` is kubectl for the cluster (see random/generator.py).

running() { # NODE LABEL VALUE: the ids of its running containers whose label is so, and not the pods' own
  local kind='labels."io.cri-containerd.kind"==container' each
  for each in $(docker exec "$1" ctr -n k8s.io containers ls -q "$kind,labels.\"io.kubernetes.$2\"==$3"); do
    docker exec "$1" ctr -n k8s.io tasks ls | awk -v id="$each" '$1 == id && $3 != "STOPPED" { print id }'
  done
}

container() { # NODE POD: the id of its container
  running "$1" pod.name "$2"
}

static() { # NODE NAME: the id of the container of a static pod, such as the API server
  running "$1" container.name "$2"
}

task() { # NODE ID pause|resume|kill
  if [ "$3" = kill ]; then set -- "$1" "$2" kill --signal SIGKILL; fi
  docker exec "$1" ctr -n k8s.io tasks "${@:3}" "$2"
}

first_process() { # NODE POD: its process id on the node
  docker exec "$1" ctr -n k8s.io tasks ls | awk -v id="$(container "$1" "$2")" '$1 == id { print $2 }'
}

hit() { # NODE POD PATTERN SIGNAL: signal the processes of the pod whose command line is like this
  local found
  found=$(docker exec "$1" pgrep --ns "$(first_process "$1" "$2")" --nslist pid --full -- "$3")
  # shellcheck disable=SC2086 # one argument for each process
  docker exec "$1" kill -s "$4" $found
}

link() { # NODE POD up|down: the pod's network
  docker exec "$1" nsenter --target "$(first_process "$1" "$2")" --net ip link set eth0 "$3"
}

cut() { # NODE: its network
  local chain
  for chain in INPUT FORWARD; do docker exec "$1" iptables -I $chain -i eth0 -j DROP; done
  for chain in OUTPUT FORWARD; do docker exec "$1" iptables -I $chain -o eth0 -j DROP; done
}

mend() { # NODE: undo `cut`
  local rule
  for rule in "INPUT -i" "FORWARD -i" "OUTPUT -o" "FORWARD -o"; do
    # shellcheck disable=SC2086 # the chain and the option are two arguments
    while docker exec "$1" iptables -D $rule eth0 -j DROP 2>/dev/null; do :; done
  done
}

thaw() { # NODE: undo `docker pause`
  docker unpause "$1" 2>/dev/null || true # it may run already
}

scale() { # NAMESPACE REPLICAS: every Deployment of it
  k scale -n "$1" deployment --all --replicas="$2"
}

anew() { # NAMESPACE: its pods are made again; one that lost its lease again and again waits for minutes
  k delete pods -n "$1" --all --wait=false
}

tracker() { # kill|pause|resume: its container
  local of=(-n harness-system -l app.kubernetes.io/name=tracker) pod node
  pod=$(k get pod "${of[@]}" -o jsonpath='{.items[0].metadata.name}')
  node=$(k get pod "${of[@]}" -o jsonpath='{.items[0].spec.nodeName}')
  task "$node" "$(container "$node" "$pod")" "$1"
}

settle() { # wait until the cluster serves as before
  until k get --raw /readyz >/dev/null; do sleep 1; done
  k wait --for=condition=Ready node --all --timeout=90s
  local namespace
  for namespace in kube-system jobset-system kueue-system harness-system; do
    k rollout status -n "$namespace" deployment --timeout=120s
  done
  k rollout status -n kube-system daemonset --timeout=120s
}

# For the network-* faults, whose pods wait for a gate to open (netcheck.yaml).

open_gate() { # NAMESPACE POD...: netcheck begins in these pods
  local each waiting=()
  for each in "${@:2}"; do
    k exec -n "$1" "$each" -- touch /tmp/open &
    waiting+=($!)
  done
  for each in "${waiting[@]}"; do wait "$each"; done
}

inside() { # NODE POD COMMAND...: with the node's tools, in the pod's network
  docker exec -i "$1" nsenter --target "$(first_process "$1" "$2")" --net "${@:3}"
}

address() { # NAMESPACE POD
  k get pod -n "$1" "$2" -o jsonpath='{.status.podIP}'
}

deselect() { # NAMESPACE POD: the Service does not select it, and no endpoint is left
  k label pod -n "$1" "$2" app-
  while k get endpointslices -n "$1" -o jsonpath='{..targetRef.name}' | grep -qw "$2"; do sleep 0.2; done
}

publish() { # NAMESPACE FAMILY ENDPOINTS: records of the Service that no controller makes
  k apply -f - <<END
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: by-hand, namespace: $1, labels: {kubernetes.io/service-name: netcheck}}
addressType: $2
endpoints: [$3]
ports: [{name: rendezvous, port: 29500}]
END
}

forbid() { # NODE CHAIN OWN RULE...: a rule in the node, in a chain of its own that CHAIN goes through first
  docker exec "$1" iptables -N "$3" 2>/dev/null || true # it may be there
  docker exec "$1" iptables -C "$2" -j "$3" 2>/dev/null || docker exec "$1" iptables -I "$2" -j "$3"
  docker exec "$1" iptables -A "$3" "${@:4}"
}

allow() { # NODE CHAIN OWN: undo `forbid`
  while docker exec "$1" iptables -D "$2" -j "$3" 2>/dev/null; do :; done
  docker exec "$1" iptables -F "$3" 2>/dev/null || true # it may be gone
  docker exec "$1" iptables -X "$3" 2>/dev/null || true
}
