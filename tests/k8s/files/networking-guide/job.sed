# What the test changes in the guide's Job: sizes for CPUs, and the guide's own scripts in place of a training.
s|namespace: default|namespace: @NAMESPACE@|
s|service\.default\.svc|service.@NAMESPACE@.svc|
s|your-opensora-image:latest|@IMAGE@|
s/parallelism: 4/parallelism: 2/
s/completions: 4/completions: 2/
s/nnodes=4/nnodes=2/
s/nproc_per_node=8/nproc_per_node=1/
s/INDEX \* 8/INDEX * 1/
s/value: "32"/value: "@WORLD@"/
s/value: "1800"/value: "120"/
s/value: "600"/value: "40"/
s|nvidia.com/gpu: 8|memory: 1Gi|
s/sizeLimit: 32Gi/sizeLimit: 256Mi/
s|scripts/diffusion/train.py configs.*|/guide/@SCRIPT@|
/dataset.data-path/d
s|^        env:|&\n        - {name: PYTHONPATH, value: /guide}\n        - {name: DEBUG_DISTRIBUTED, value: "@DEBUG@"}|
s|^        volumeMounts:|&\n        - {name: guide, mountPath: /guide}|
/^      volumes:/a\
      - name: guide\
        configMap:\
          name: guide\
          items:\
          - {key: __init__.py, path: colossalai/__init__.py}\
          - {key: k8s_distributed.py, path: colossalai/utils/k8s_distributed.py}\
          - {key: main.py, path: main.py}\
          - {key: diagnose_k8s.py, path: diagnose_k8s.py}\
          - {key: test_distributed.py, path: test_distributed.py}
