# What the steps of grammar.yaml share. `k` is kubectl for the cluster; see draw.py.

container() { # NODE POD: the id of its container
  docker exec "$1" crictl ps --quiet --label "io.kubernetes.pod.name=$2"
}

first_process() { # NODE POD: its process id on the node
  docker exec "$1" crictl inspect --output go-template --template '{{.info.pid}}' "$(container "$1" "$2")"
}

hit() { # NODE POD PATTERN SIGNAL: signal the processes of the pod whose command line is like this
  local found
  found=$(docker exec "$1" pgrep --ns "$(first_process "$1" "$2")" --nslist pid --full "$3")
  # shellcheck disable=SC2086 # one argument for each process
  docker exec "$1" kill -s "$4" $found
}

link() { # NODE POD up|down: the pod's network
  docker exec "$1" nsenter --target "$(first_process "$1" "$2")" --net ip link set eth0 "$3"
}

static() { # NODE NAME: the id of the container of a static pod, such as the API server
  docker exec "$1" crictl ps --quiet --name "^$2\$"
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

tracker() { # stop|pause|resume: its container
  local of=(-n harness-system -l app.kubernetes.io/name=tracker) pod node
  pod=$(k get pod "${of[@]}" -o jsonpath='{.items[0].metadata.name}')
  node=$(k get pod "${of[@]}" -o jsonpath='{.items[0].spec.nodeName}')
  case $1 in
    stop) docker exec "$node" crictl stop --timeout 0 "$(container "$node" "$pod")" ;;
    *) docker exec "$node" ctr -n k8s.io tasks "$1" "$(container "$node" "$pod")" ;;
  esac
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
