# Save as headless-service.yaml
kubectl apply -f - <<EOF
apiVersion: v1
kind: Service
metadata:
  name: training-master-service
  namespace: default
spec:
  clusterIP: None  # Headless service
  selector:
    app: colossalai-training
    role: master
  ports:
  - name: distributed-comm
    port: 29500
    targetPort: 29500
EOF
