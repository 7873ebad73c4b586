"""Advice on errors of the network between the ranks: variables, sockets, ssh, RDMA, and NCCL's plug-ins."""

from __future__ import annotations

ADVICE = (
    (
        r"environment variable \w+ (is )?expected, but not set",
        "start the script with torchrun, which sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT for each process, or set them in the pod template",
    ),
    (
        r"of the rendezvous endpoint '",
        "pass HOST:PORT as --rdzv_endpoint, and check in every pod that the variables in it are set",
    ),
    (
        r"failed to (listen|bind) .*(name: EACCES|errno: 13 )",
        "without the capability NET_BIND_SERVICE, a process cannot listen on ports below 1024: set "
        "MASTER_PORT to a higher one",
    ),
    (
        # Connecting to another address fails for other reasons, for example if no port is left.
        r"^(?!.*(connecting to|connect to|new connection|connect\(\))).*Cannot assign requested address",
        "the program uses an address that this pod does not have: check the variables and arguments that "
        "must name the pod's own address, such as VLLM_HOST_IP, and use rank 0's address only to connect to "
        "it",
    ),
    (
        r"ibv_reg_\w*mr\w* failed.*(Bad address|Operation not supported|Invalid argument)",
        "the network card could not register the GPU's memory: check whether the nodes have the kernel "
        "module nvidia-peermem, or a kernel and driver that support DMA-BUF; NCCL_NET_GDR_LEVEL=LOC shows "
        "whether the job runs without GPUDirect RDMA",
    ),
    (
        r"ibv_reg_\w*mr\w* failed|ibv_create_\w+ failed(?! with)"
        r"|ibv_create_\w+ failed with (error|12) Cannot allocate memory"
        r"|NET/OFI .*RC: -12, ERROR: Cannot allocate memory",
        "RDMA needs locked memory: raise the limit in the container (`ulimit -l unlimited`) or in the "
        "container runtime, and grant the pod the capability IPC_LOCK",
    ),
    (
        r"ibv_\w+ failed.*No such device",
        "the pod cannot use this RDMA device: run `show_gids` in the pod, and set NCCL_IB_HCA and "
        "NCCL_IB_GID_INDEX to a device and an index that have an address there; devices of the node's "
        "network need hostNetwork: true or a device plugin",
    ),
    (
        r"NET/IB(P|/GIN)? ?:? ?Got completion .*(status=|error )(IBV_WC_\w+\()?(4|10|11)\b",
        "the network card could not access the GPU's memory (GPUDirect RDMA), usually because PCIe Access "
        "Control Services are enabled on the node: disable ACS; NCCL_NET_GDR_LEVEL=LOC shows whether this is "
        "the reason",
    ),
    (
        r"nvshmem initialization failed",
        "NVSHMEM cannot use the network cards: read its first message above. IBGDA needs nvidia-peermem or "
        "DMA-BUF, the driver option PeerMappingOverride=1, and a privileged pod or its RDMA devices; with "
        "`ibv_modify_qp failed`, check the link to the peer (`ibstat`) and NVSHMEM_IB_GID_INDEX",
    ),
    (
        r"ibv_\w+ failed with |NET/IB(P|/GIN)? ?:? ?Got (completion|async event)"
        r"|Transport retry count exceeded on ",
        "the InfiniBand or RoCE link to the peer failed: check whether the ports are active (`ibstat`) on "
        "both nodes, and whether NCCL_IB_HCA and NCCL_IB_GID_INDEX are correct; if cards reach only those of "
        "the same rail, set NCCL_CROSS_NIC=0; NCCL_IB_DISABLE=1 shows whether TCP works",
    ),
    (
        r"NET/OFI .*completed with error|NET/OFI Unable to insert remote address",
        "EFA needs a security group that allows all inbound and outbound traffic to and from itself: "
        "add these "
        "rules to the nodes' security group; NCCL_NET=Socket shows whether TCP works",
    ),
    (
        r"NET/OFI .*(Couldn't|Unable to|[Ff]ailed|Only EFA provider)",
        "the EFA plug-in could not use the network cards: use the plug-in (aws-ofi-nccl), libfabric and NCCL "
        "of one EFA installer in every pod, and request vpc.amazonaws.com/efa and huge pages; "
        "NCCL_NET=Socket shows whether TCP works",
    ),
    (
        r"Error: network .{1,60} not found|Failed to initialize any NET plugin",
        "NCCL has no network of this name in the pod: check NCCL_NET, whether its plug-in (libnccl-net.so) "
        "is in LD_LIBRARY_PATH, and whether the pod requests the network cards; NCCL_DEBUG=INFO shows which "
        "networks NCCL tried",
    ),
    (
        r"socketFinalizeAccept: wrong type \d != \d",
        "the nodes use different networks, such as InfiniBand on one and TCP on another: compare NCCL's "
        "lines `Using network` (NCCL_DEBUG=INFO) and the NCCL_NET and NCCL_IB_* variables of the pods; "
        "NCCL_IB_DISABLE=1 makes all of them use TCP",
    ),
    (
        r"MNNVL .*is available but not working",
        "the pod cannot use the NVLinks between nodes: give the pods an IMEX channel (a ComputeDomain of "
        "NVIDIA's DRA driver, or /dev/nvidia-caps-imex-channels) and check the service nvidia-imex on the "
        "nodes; NCCL_MNNVL_ENABLE=0 avoids these links",
    ),
    (
        r"ssh: Could not resolve hostname",
        "the launcher cannot resolve the name of a worker: check the worker pods, their hostname and "
        "subdomain, and their headless Service; let the launcher wait for the workers (MPIJob: "
        "launcherCreationPolicy: WaitForWorkersReady)",
    ),
    (
        r"ssh: connect to host|not reachable via ssh|'ssh .*exit status 255|ssh exited with exit code 255"
        r"|Host key verification failed|Permission denied \(publickey|/\.ssh/.*bad permissions",
        "the launcher cannot log in to a worker: check whether sshd runs there, its port, and the key (a "
        "Secret with defaultMode 0600, and StrictHostKeyChecking no); torchrun in every pod needs no ssh",
    ),
    (
        r"(socket\w+Connect|Net ?): connect to .*(No route to host|timed out|unreachable|connection abort)",
        "NCCL cannot connect to this address: set NCCL_SOCKET_IFNAME to the interface of the pods' network, "
        "and check whether a NetworkPolicy or a firewall blocks high ports; --netcheck tests the connections",
    ),
    (
        r"ss1\.ss_family == ss2\.ss_family",
        "gloo uses IPv4 on one rank and IPv6 on another: set GLOO_SOCKET_IFNAME to the interface of the "
        "pods' network in every pod, or make the pods' own names resolve to addresses of one family",
    ),
    (
        r"Unable to find interface for: ",
        "gloo found no interface with the address of the pod's own host name, which it takes for an address "
        "if it is a number: set GLOO_SOCKET_IFNAME to an interface of the pod, or rename the pod",
    ),
    (
        r"Mismatched NCCL version",
        "the ranks load different versions of NCCL: use the same image in every pod, and check whether "
        "LD_LIBRARY_PATH or LD_PRELOAD selects a different one",
    ),
)
"""Pairs of a pattern for an error and the advice on it. The first pattern that matches counts."""
