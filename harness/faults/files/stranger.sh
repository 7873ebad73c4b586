# Run stranger.py in the cluster, as a job in another namespace, and wait until it ends.
#   KUBECTL=… IMAGE=… bash stranger.sh NAMESPACE RUN_ID rows|file|status
set -eu
here=$(dirname "$0")
namespace=$1 run_id=$2 what=$3
$KUBECTL create namespace "$namespace"
key=$($KUBECTL get secret tracker -n harness-system -o 'jsonpath={.data.api-key}' | base64 -d)
$KUBECTL create secret generic pluto -n "$namespace" --from-literal=key="$key"
$KUBECTL create configmap stranger -n "$namespace" --from-file="$here/stranger.py"
url=http://tracker.harness-system.svc.cluster.local:8080
$KUBECTL apply -n "$namespace" -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: stranger}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  volumes: [{name: code, configMap: {name: stranger}}]
  containers:
    - name: stranger
      image: $IMAGE
      imagePullPolicy: IfNotPresent
      command: [python3, /code/stranger.py, $what]
      volumeMounts: [{name: code, mountPath: /code}]
      env:
        - {name: PLUTO_API_KEY, valueFrom: {secretKeyRef: {name: pluto, key: key}}}
        - {name: PLUTO_URL_APP, value: "$url"}
        - {name: PLUTO_URL_API, value: "$url"}
        - {name: PLUTO_URL_INGEST, value: "$url"}
        - {name: PLUTO_URL_PY, value: "$url"}
        - {name: PLUTO_RUN_ID, value: "$run_id"}
        - {name: PLUTO_PROJECT, value: e2e}
        - {name: PLUTO_DIR, value: /tmp/pluto}
        - {name: PLUTO_DISABLE_TELEMETRY, value: "1"}
        - {name: NO_PROXY, value: ".svc,.cluster.local"}
        - {name: KONDUKTOR_JOB_NAME, value: stranger-job}
        - {name: KONDUKTOR_RANK, value: "3"}
        - {name: RANK, value: "3"}
END
if ! $KUBECTL wait -n "$namespace" --for=jsonpath='{.status.phase}'=Succeeded pod/stranger --timeout=120s; then
  $KUBECTL logs -n "$namespace" stranger
  exit 1
fi
