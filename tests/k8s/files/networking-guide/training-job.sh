# Save as training-job.yaml
kubectl apply -f - <<EOF
apiVersion: batch/v1
kind: Job
metadata:
  name: opensora-multinode-training
  namespace: default
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  template:
    metadata:
      labels:
        app: colossalai-training
    spec:
      restartPolicy: Never
      containers:
      - name: training
        image: your-opensora-image:latest
        command:
        - /bin/bash
        - -c
        - |
          # Wait for pod startup synchronization
          sleep \$((RANDOM % 30 + 30))

          # Set additional environment variables
          export RANK=\$((JOB_COMPLETION_INDEX * 8))
          export LOCAL_RANK=0

          # Enhanced torchrun command
          torchrun \\
            --nnodes=4 \\
            --nproc_per_node=8 \\
            --node_rank=\$JOB_COMPLETION_INDEX \\
            --rdzv_backend=c10d \\
            --rdzv_endpoint=\$MASTER_ADDR:\$MASTER_PORT \\
            --rdzv_id=opensora-training-\$JOB_NAME \\
            --rdzv_conf=timeout=1800,read_timeout=120 \\
            --master_addr=\$MASTER_ADDR \\
            --master_port=\$MASTER_PORT \\
            scripts/diffusion/train.py configs/diffusion/train/demo.py \\
            --dataset.data-path modified_data.csv
        env:
        - name: MASTER_ADDR
          value: "training-master-service.default.svc.cluster.local"
        - name: MASTER_PORT
          value: "29500"
        - name: WORLD_SIZE
          value: "32"
        - name: NODE_RANK
          valueFrom:
            fieldRef:
              fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
        - name: JOB_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['job-name']
        - name: NCCL_SOCKET_IFNAME
          value: "eth0"
        - name: GLOO_SOCKET_IFNAME
          value: "eth0"
        - name: NCCL_IB_DISABLE
          value: "1"
        - name: NCCL_DEBUG
          value: "WARN"
        - name: COLOSSALAI_DIST_TIMEOUT
          value: "1800"
        - name: COLOSSALAI_MASTER_READY_TIMEOUT
          value: "600"
        resources:
          requests:
            nvidia.com/gpu: 8
          limits:
            nvidia.com/gpu: 8
        volumeMounts:
        - name: shm
          mountPath: /dev/shm
      volumes:
      - name: shm
        emptyDir:
          medium: Memory
          sizeLimit: 32Gi
EOF
