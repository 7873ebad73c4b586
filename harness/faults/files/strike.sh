# Functions for the steps in grammar.yaml. `k` is kubectl for the cluster (see random/generator.py).

running() { # NODE LABEL VALUE: print the ids of the node's running containers with this label, without sandboxes
  local kind='labels."io.cri-containerd.kind"==container' each
  for each in $(docker exec "$1" ctr -n k8s.io containers ls -q "$kind,labels.\"io.kubernetes.$2\"==$3"); do
    docker exec "$1" ctr -n k8s.io tasks ls | awk -v id="$each" '$1 == id && $3 != "STOPPED" { print id }'
  done
}

container() { # NODE POD: print the id of the pod's container
  running "$1" pod.name "$2"
}

static() { # NODE NAME: print the id of a static pod's container, such as the API server's
  running "$1" container.name "$2"
}

task() { # NODE ID pause|resume|kill: pause, resume or kill the container with this id
  if [ "$3" = kill ]; then set -- "$1" "$2" kill --signal SIGKILL; fi
  docker exec "$1" ctr -n k8s.io tasks "${@:3}" "$2"
}

first_process() { # NODE POD: print the pid, on the node, of the pod's first process
  docker exec "$1" ctr -n k8s.io tasks ls | awk -v id="$(container "$1" "$2")" '$1 == id { print $2 }'
}

hit() { # NODE POD PATTERN SIGNAL: send a signal to the pod's processes whose command line matches the pattern
  local found
  found=$(docker exec "$1" pgrep --ns "$(first_process "$1" "$2")" --nslist pid --full -- "$3")
  # shellcheck disable=SC2086 # each pid is a separate argument
  docker exec "$1" kill -s "$4" $found
}

link() { # NODE POD up|down: enable or disable the pod's network interface
  docker exec "$1" nsenter --target "$(first_process "$1" "$2")" --net ip link set eth0 "$3"
}

cut() { # NODE: drop all of the node's network traffic
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
  docker unpause "$1" 2>/dev/null || true # it may not be paused
}

scale() { # NAMESPACE REPLICAS: scale every Deployment in the namespace
  k scale -n "$1" deployment --all --replicas="$2"
}

anew() { # NAMESPACE: recreate the pods, because a controller that keeps losing its lease backs off for minutes
  k delete pods -n "$1" --all --wait=false
}

tracker() { # kill|pause|resume: kill, pause or resume the tracker's container
  local of=(-n harness-system -l app.kubernetes.io/name=tracker) pod node
  pod=$(k get pod "${of[@]}" -o jsonpath='{.items[0].metadata.name}')
  node=$(k get pod "${of[@]}" -o jsonpath='{.items[0].spec.nodeName}')
  task "$node" "$(container "$node" "$pod")" "$1"
}

settle() { # wait until all nodes, controllers and DaemonSets of the cluster are ready again
  until k get --raw /readyz >/dev/null; do sleep 1; done
  k wait --for=condition=Ready node --all --timeout=90s
  local namespace
  for namespace in kube-system jobset-system kueue-system harness-system; do
    k rollout status -n "$namespace" deployment --timeout=120s
  done
  k rollout status -n kube-system daemonset --timeout=120s
}

# Functions for the network-* faults, whose pods wait until a file exists (the gate in netcheck.yaml).

open_gate() { # NAMESPACE POD...: let netcheck start in these pods
  local each waiting=()
  for each in "${@:2}"; do
    k exec -n "$1" "$each" -- touch /tmp/open &
    waiting+=($!)
  done
  for each in "${waiting[@]}"; do wait "$each"; done
}

inside() { # NODE POD COMMAND...: run a command of the node in the pod's network namespace
  docker exec -i "$1" nsenter --target "$(first_process "$1" "$2")" --net "${@:3}"
}

address() { # NAMESPACE POD: print the pod's IP address
  k get pod -n "$1" "$2" -o jsonpath='{.status.podIP}'
}

deselect() { # NAMESPACE POD: remove the pod from the Service, and wait until its endpoint is gone
  k label pod -n "$1" "$2" app-
  while k get endpointslices -n "$1" -o jsonpath='{..targetRef.name}' | grep -qw "$2"; do sleep 0.2; done
}

publish() { # NAMESPACE FAMILY ENDPOINTS: create an EndpointSlice that no controller manages
  k apply -f - <<END
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: by-hand, namespace: $1, labels: {kubernetes.io/service-name: netcheck}}
addressType: $2
endpoints: [$3]
ports: [{name: rendezvous, port: 29500}]
END
}

forbid() { # NODE CHAIN OWN RULE...: add an iptables rule to the chain OWN, which is created if needed and to which CHAIN jumps first
  docker exec "$1" iptables -N "$3" 2>/dev/null || true # it may exist
  docker exec "$1" iptables -C "$2" -j "$3" 2>/dev/null || docker exec "$1" iptables -I "$2" -j "$3"
  docker exec "$1" iptables -A "$3" "${@:4}"
}

allow() { # NODE CHAIN OWN: undo `forbid`
  while docker exec "$1" iptables -D "$2" -j "$3" 2>/dev/null; do :; done
  docker exec "$1" iptables -F "$3" 2>/dev/null || true # it may not exist
  docker exec "$1" iptables -X "$3" 2>/dev/null || true
}
