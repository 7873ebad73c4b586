"""The catalogue of causes, as data: id | meaning | evidence | what to do | provoked by.

One block per family, in the order in which things go wrong. A `?` before the id: the cause leaves the verdict
UNKNOWN, because it says that something could not be known, not that the job is bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FAMILIES = {
    "docker": "Docker, under the cluster",
    "cluster": "The cluster and its nodes",
    "controllers": "JobSet and Kueue",
    "image": "Images",
    "queue": "Queues",
    "admission": "Admission by Kueue",
    "launch": "The launcher",
    "scheduling": "Scheduling of pods",
    "rendezvous": "Rendezvous of the ranks",
    "rank": "A rank's own end",
    "run": "The run as a whole, and its evidence",
    "tracker": "The tracker",
    "unification": "One run with every point",
}

CATALOGUE = """
docker.not_installed | No Docker client or daemon is installed. | the stage's error | `harness doctor --fix` | a PATH without docker
docker.daemon_down | The Docker daemon does not answer. | the stage's error, `docker info` | `harness doctor --fix`, or start the daemon | a DOCKER_HOST at which nobody listens
docker.permission | The user may not use the Docker daemon. | the stage's error | add the user to the group docker, or run as root | running as a user without rights
docker.disk_full | Docker's disk is full, or has less room than a new cluster needs. | the stage's error | `docker system prune`, or a larger disk | a file that leaves 3 GiB below Docker's root
docker.port_taken | A port that the cluster needs is in use. | kind's output | free the port, or choose another: HARNESS_API_PORT | listening on the port chosen for the API server
docker.unsupported | This Docker cannot run kind nodes (version, cgroups, privileges). | the stage's error | `harness doctor` says what is missing | Debian 12's docker.io without CAP_SYS_RESOURCE
cluster.tool_missing | kind is not installed. | the stage's error | `harness doctor --fix`, or name it by HARNESS_KIND_BIN | a HARNESS_KIND_BIN that does not exist
cluster.create_failed | kind could not create the cluster. | the stage's error, kind/ export | read kind/ in the bundle; `kind delete cluster` and try again | killing kind while it creates
cluster.name_taken | A cluster of this name is there, and the harness did not make it. | kind's output | choose another --cluster-name; the harness deletes only what it made | `kind create cluster` with the same name
cluster.mismatch | The kept cluster has another node image or another number of workers. | the stage's error | `harness down`, or another --cluster-name | keeping a cluster, then asking for more workers
cluster.unhealthy | The kept cluster is there and its API server or a node is not ready. | the stage's error | `harness status`, `harness down` | stopping a node of a kept cluster
cluster.node_image | The node image could not be had, built or used. | the stage's error, kind's output | read the build's output, kind/ in the bundle; Go module proxy and Debian mirror, or the registry | naming a node image that does not exist
cluster.nodes_not_ready | Nodes did not become Ready in time. | objects/node.jsonl, kind/ export | `kubectl describe node`; the container network and kubelet logs | stopping a node's kubelet
cluster.unreachable | The API server cannot be reached. | the stage's error | `kubectl --context … get --raw /readyz` | pausing the control plane
cluster.kubeconfig | The kubeconfig or its context cannot be used. | the stage's error | check KUBECONFIG and --context | a context that does not exist
cluster.forbidden | These credentials may not do what a launch needs on this cluster. | the stage's error | `harness preflight` names each permission | a kubeconfig of an account that may only look
cluster.node_lost | A node of the job stopped answering while it ran. | objects/node.jsonl: Ready is not True | `kubectl describe node`, `docker ps` | pausing a node, stopping its kubelet or containerd, cutting its network
cluster.delete_failed | The cluster could not be deleted. | the stage's error | `kind delete cluster`, `docker ps -a` | a node container that cannot be killed
controllers.install_failed | JobSet or Kueue could not be applied. | the stage's error | read the API server's answer in the bundle | a broken manifest
controllers.manifest | A manifest of JobSet or Kueue could not be had, or is not the pinned one. | the stage's error | network, or HARNESS_IMAGES=source; versions.toml | a file server with another manifest
controllers.image_failed | The image of a controller could not be built or brought to the nodes. | the stage's error | read the build's output; `harness images build` | a proxy that refuses Go modules
controllers.crd_missing | The JobSet or Kueue API is not installed. | the stage's error | `harness up` | deleting the JobSet CRD
controllers.version_unsupported | The cluster serves no API version that the job needs. | the stage's error | install the versions of harness/versions.toml | a CustomResourceDefinition that stops serving v1alpha2
controllers.jobset_not_ready | JobSet's controller is not available. | the stage's error, objects/jobset-controller.jsonl | `kubectl -n jobset-system describe deployment,pod` | scaling it to 0 before the launch, at the launch, while ranks train
controllers.kueue_not_ready | Kueue's controller is not available. | the stage's error, objects/kueue-controller.jsonl | `kubectl -n kueue-system describe deployment,pod` | scaling it to 0 before the launch, at the launch, while ranks train
controllers.webhook_not_serving | A webhook of JobSet or Kueue does not answer, so nothing can be created. | the stage's error, events.jsonl | its endpoints: `kubectl get endpointslices -A`; controllers/ logs | a Service whose selector finds no pod
controllers.jobset_not_reconciling | JobSet's controller runs and does nothing: no Job comes of a resumed JobSet, or its end is not noted. | objects/jobset.jsonl without Jobs and pods | controllers/ logs of jobset-system | taking the controller's permissions away
controllers.kueue_not_reconciling | Kueue's controller runs and does nothing: no Workload comes of a queued JobSet. | objects/jobset.jsonl without a Workload | controllers/ logs of kueue-system | taking the controller's permissions away
image.build_failed | The worker image could not be built. | the stage's error | read the build's output in the bundle | a Dockerfile that does not build
image.load_failed | The image could not be brought to the nodes. | the stage's error | disk of the nodes; `docker exec NODE ctr -n k8s.io images ls` | filling a node's disk
image.not_found | The image does not exist where the node looks for it. | the container's waiting reason and message | check image_id; load it: `harness images build`; a tag other than latest | an image that no node has, and pull policy Never
image.pull_failed | The image exists and could not be pulled. | the container's waiting reason and message | registry, credentials, network of the node; pull policy IfNotPresent | a registry that does not answer
image.pull_denied | The registry gave the image to nobody without a login, or to none with this one. | the container's waiting reason and message | a Secret for images: `HARNESS_IMAGE_PULL_SECRET=namespace/name`; or the image's name is wrong | a registry that wants a password
image.config | The container could not be configured (a missing ConfigMap, Secret or a wrong user). | the container's waiting reason | create what the message names | an env from a Secret that does not exist
image.entrypoint | The container could not be started: the image has no such command. | the container's state StartError or RunContainerError | run the image by hand: it needs bash | an image without bash
image.wrong_architecture | The image's programs are for another processor than the node's. | the container's state, or the log line "exec format error" | build the image for the nodes: `docker build --platform` | an image with the bash of arm64
image.not_root | The image runs as a user other than root, and konduktor's script needs root. | exit code and log line of the rank | USER 0 in the image, or runAsUser: 0 in kubernetes.pod_config | an image with USER 65532
image.no_torch | There is no torch, or no torchrun, in the image. | exit code and log line of the rank | install torch into the image, or name the right image_id | an image of Python alone
queue.local_queue_missing | The LocalQueue of the job does not exist in its namespace. | the Workload's QuotaReserved message | create it, or correct kueue.x-k8s.io/queue-name | a queue name that does not exist
queue.cluster_queue_missing | The LocalQueue points at a ClusterQueue that does not exist. | the Workload's QuotaReserved message | create the ClusterQueue | a LocalQueue that points nowhere
queue.inactive | The queue is stopped or cannot admit (a flavor or check is missing). | the Workload's message, objects/clusterqueue.jsonl | `kubectl describe clusterqueue` | stopPolicy: Hold, a flavor that does not exist
admission.quota_exceeded | The job asks for more than the queue can ever give. | the Workload's QuotaReserved message | ask for less, or raise nominalQuota | a quota of 100m CPU
admission.resource_not_covered | The queue has no quota for a resource that the job asks for. | the Workload's QuotaReserved message | add the resource to the ClusterQueue | asking for a GPU in a queue of CPUs
admission.no_flavor | No flavor of the queue fits the job's node selector or tolerations. | the Workload's QuotaReserved message | correct the selector or the flavor | a flavor with a taint
admission.pending | The job waited for quota that others use. | the Workload's QuotaReserved message | wait, or `kubectl get workloads -A` for who holds it | a Workload that holds the quota
admission.check_pending | An admission check did not let the job through. | the Workload's conditions | `kubectl describe workload` | an AdmissionCheck that nobody answers
admission.not_seen | The job never ran and its Workload says neither yes nor no. | objects/workload.jsonl | `kubectl describe workload`; controllers/ logs | a scheduler of Kueue that stands still (no fault of the matrix)
admission.preempted | A job of higher priority took the quota. | the Workload's Evicted condition | run again, or raise the priority | a Workload of higher priority, with withinClusterQueue: LowerPriority
admission.pods_ready_timeout | Kueue evicted the job: its pods were not ready in time. | the Workload's Evicted condition | see why pods were not ready; waitForPodsReady | a pod that cannot be scheduled
admission.max_execution_time | Kueue ended the job: it ran longer than maxRunDurationSeconds, or than --wait leaves for it. | the Workload's Evicted condition | raise --wait and maxRunDurationSeconds, whichever is shorter, or see where ranks hang | maxRunDurationSeconds: 20
admission.deactivated | The Workload was set inactive. | the Workload's Evicted condition or spec.active | `kubectl patch workload … active: true`; who did it? | `spec.active: false`
admission.queue_stopped | The queue was stopped while the job ran. | the Workload's Evicted condition | resume the queue | stopPolicy: HoldAndDrain
admission.evicted | Kueue evicted the job for another reason. | the Workload's Evicted condition | read the condition's message | a failed AdmissionCheck
launch.konduktor_missing | konduktor is not installed, and could not be. | the stage's error | the package index that pip is set up with | an index that does not answer
launch.konduktor_failed | konduktor ended with an error. | the stage's error | read its output in the bundle | a broken module in its environment
launch.timed_out | The launcher did not end in time. | the stage's error | its last line, network of the launcher; its log in the bundle | a konduktor that hangs
launch.run_id_resumes | A run id has the shape of a Pluto id, so the client asks for an existing run instead of making one. | the stage's error, or the rank's log | choose an id like team-run-7f3a | PLUTO_RUN_ID=ABC-1
launch.rejected | The API server, a webhook or a policy refused the job. | the stage's error | read its message | a policy that denies the JobSet
launch.jobset_not_found | The launcher said it launched, and there is no such object. | manifest.json: launch without uid | `kubectl get jobset -A`; is the JobSet API installed? | deleting the JobSet CRD
scheduling.unschedulable | A pod fits on no node. | the pod's PodScheduled condition | ask for less, or correct the node selector and taints | more CPU than any node has
scheduling.not_spread | The ranks ran on fewer nodes than the test asks for. | spec.nodeName of the pods | anti-affinity, or more nodes | one node cordoned
scheduling.not_started | A pod was bound to a node and its container never started. | the pod's conditions and events | `kubectl describe pod`; kubelet of that node | stopping a node's kubelet
rendezvous.agent_missing | A rank's torchrun never came to the rendezvous, and the others waited for it. | inspections.jsonl: processes of its pod | what does the rank named do instead? its log and run script | a rank that sleeps in place of torchrun
rendezvous.dns | A rank could not resolve the address of the rendezvous. | inspections.jsonl: what its container resolves; its log | MASTER_ADDR, /etc/resolv.conf, the headless Service and CoreDNS | a MASTER_ADDR that does not exist, a container without a name server
rendezvous.unreachable | The address of the rendezvous was resolved, and no rendezvous answered at its port. | inspections.jsonl: connections; the rank's log | is rank 0 up, is the port right, do pods reach each other? | a wrong port, an address at which nobody or something else listens
rendezvous.id_mismatch | Ranks came to the same address with different rendezvous ids. | inspections.jsonl: command lines | the same --rdzv_id on every rank | another --rdzv_id on one rank
rendezvous.world_size | A rank's torchrun expects other nodes, or runs other processes, than the job has. | inspections.jsonl: command lines; truth/ of more ranks than expected | --nnodes, --nproc_per_node and --node_rank of every rank | another --nnodes or --nproc_per_node on one rank
rendezvous.timeout | Ranks waited for others in vain, and nothing more is known. | inspections.jsonl, the waiting ranks' logs | see the ranks named; DNS and port of MASTER_ADDR | a rank that hangs before it joins the process group
rank.missing | A rank never had a pod. | objects/pod.jsonl | `kubectl describe job` | a pod refused by admission
rank.restarted | A rank was started again, and nothing in the job allows that. | objects/pod.jsonl: more than one pod of a node; truth/RANK.jsonl: more than one attempt | who deleted, edited or suspended it? maxRestarts, backoffLimit or --max-restarts allow it | deleting a Job of the JobSet, suspending and resuming the JobSet
rank.crashed | A rank's process ended with an exit code other than 0. | exit code in the pod's state, last lines of its log | read the rank's log | `sys.exit(3)` in one rank
rank.exit_code_masked | A rank's process failed and its shell reported success. | exit code 0 in the pod's state, torchrun's report of a failure at the end of its log | no `|| true` in the run script; `set -e` | `|| true` behind torchrun
rank.exited_early | A rank ended with exit code 0 before its work was done, and its peers lost it. | exit code 0 in the pod's state, no end of its ground truth | why does it leave? its log | `sys.exit(0)` in one rank before its first log
rank.hung | A rank made no progress, and its own deadline ended it. | the stack in its log, the others' stacks | read the stack: where does it stand? | a rank that waits for ever at a step, or when it exits
rank.oom_killed | The kernel killed a rank: out of memory. | terminated.reason OOMKilled | raise memory, or use less | allocating more than the limit
rank.killed | A rank was ended by a signal. | exit code over 128, or torchrun's report | who sent it? `kubectl get events` | `kill -9` in one rank
rank.evicted | A pod was evicted by its node or the scheduler. | the pod's DisruptionTarget condition | see the message: disk, memory, taint, priority | tainting its node NoExecute
rank.pod_deleted | A pod was deleted while it ran, and no rank had failed before. | deletionTimestamp before any failure | who deleted it? | `kubectl delete pod`
rank.tracker_unreachable | A rank ended because the tracker could not be reached or did not serve. | the rank's log, objects/tracker.jsonl | PLUTO_URL_* and the tracker's pod | the tracker down at start
run.not_completed | The job failed, and no rank's own end explains it. | the JobSet's terminalState and conditions | `kubectl describe jobset` | deleting a Job of the JobSet
run.timed_out | The job did not end before the deadline. | manifest.json: interrupted; logs of the ranks still running | see the last line of the ranks named | a rank that hangs at a step
run.deleted | The job was deleted before it ended. | a DELETED delivery in objects/jobset.jsonl | who deleted it? | `kubectl delete jobset`
?run.interrupted | A user stopped the harness. | manifest.json: interrupted | run again | Ctrl-C
?run.harness_killed | The harness ended without closing its evidence. | manifest.json without ended_at | run again; was the harness killed? | kill -9 of the harness
?run.no_manifest | The bundle has no readable manifest, or the manifest does not say what was expected. | manifest.json | run again | deleting manifest.json
?run.harness_error | A stage failed for a reason that has no name yet. | the stage's error | report it with the bundle | an error in the harness
?run.evidence_disk_full | The disk of the evidence was full. | the stage's error | free some disk space, HARNESS_RUNS_DIR | filling the disk
?run.evidence_missing | States of the job's objects are not in the bundle. | the files named | run again; was the API server reachable? | deleting objects/
?run.evidence_damaged | A file of the bundle is cut or holds something else. | the lines named | run again | cutting a file
?run.log_incomplete | A rank's log is missing or known to have a gap. | logs/, manifest.json: log_gaps | raise containerLogMaxSize; run again | a flood of log lines
?run.judge_error | A judge failed. | the check's explanation | report it with the bundle; a judge of your own (`user.…`) is yours to mend | a bundle that no harness wrote, a judge of your own that raises
tracker.not_ready | The tracker does not serve, and so nothing is launched. | the stage's error | `kubectl -n harness-system describe pod` | the tracker of a kept cluster scaled to 0
tracker.key_rejected | The tracker does not accept the key. | the stage's error, the rank's log, or its client's word in truth/RANK.jsonl | check PLUTO_API_KEY | a wrong key, or one revoked in the middle
tracker.disk_full | The tracker's disk is full, so it keeps nothing more. | failures in tracker/summary.json | a larger volume; the clients' queues still hold what it refused | filling the tracker's volume
tracker.data_lost | The tracker came back without its database while the job ran. | objects/tracker.jsonl: another pod, tracker/runs.jsonl | give the tracker a volume that outlives its pod; run again | deleting the tracker's pod
?tracker.unreachable | The tracker could not be asked for its rows. | tracker/summary.json | is it up? `harness judge` again after fetching | the tracker down at the end
?tracker.incomplete | The tracker's rows in the bundle are not all that it has. | counts of tracker/summary.json | run again; hosted: fewer points | cutting tracker/points.jsonl
unification.no_run | The tracker has no run of the shared id. | tracker/runs.jsonl | did any rank reach the tracker, with the right project? | ranks given another id
unification.stale_run | The run of the shared id was there before this launch. | created_at of the run, launched_at of the manifest | choose an id that was not used before | launching twice with one PLUTO_RUN_ID
unification.split_runs | Ranks logged to more than one run. | tracker/attachments.jsonl, runs.jsonl | PLUTO_RUN_ID and PLUTO_PROJECT of the rank named | one rank given another run id
unification.not_attached | A rank never attached to the shared run. | tracker/attachments.jsonl | does this rank call pluto.init? its log | a rank that does not initialise Pluto
unification.rank_silent | A rank logged nothing. | its ground truth, count 0 | does every rank log? | a rank that logs nothing
?unification.truth_incomplete | What a rank logged is not known completely. | truth/RANK.jsonl | did the rank end normally, is its log whole? | killing a rank before its last word
unification.lost_points | Points that a rank logged are not in the run. | truth/RANK.jsonl against tracker/points.jsonl | the explanation says where they went: never given to the client (the worker's code), given and not sent (how the process ended), or sent and lost (the tracker) | a tracker that acknowledges and loses, a killed pluto.sync
unification.wrong_value | A point in the run has another value than the rank logged. | truth/RANK.jsonl against tracker/points.jsonl | who else writes this metric and step? | changing one value
unification.metric_collision | Ranks logged different values for one metric and step: Pluto keeps one. | truth/ of the ranks named | put the rank into the metric's name | two ranks logging train/loss
unification.foreign_points | The run holds points that no rank logged. | tracker/points.jsonl | who else uses this run id? | a second writer with the same id
unification.wrong_status | The run's final status does not agree with the pods. | status in tracker/runs.jsonl | does the client finish the run? | a rank that fails after another finished
"""  # noqa: E501


@dataclass(frozen=True)
class Cause:
    """Why a verdict is not a PASS. `result` is what a check with this cause says."""

    id: str
    meaning: str
    evidence: str
    action: str
    provoked_by: str
    result: Literal["FAIL", "UNKNOWN"]

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]


def _parse(catalogue: str) -> dict[str, Cause]:
    causes: dict[str, Cause] = {}
    for line in catalogue.strip().splitlines():
        id_, meaning, evidence, action, provoked_by = (cell.strip() for cell in line.split(" | "))
        unknown = id_.startswith("?")
        cause = Cause(
            id_.removeprefix("?"), meaning, evidence, action, provoked_by, "UNKNOWN" if unknown else "FAIL"
        )
        if cause.family not in FAMILIES or cause.id in causes:
            raise ValueError(f"a cause of no family, or twice: {cause.id}")
        causes[cause.id] = cause
    return causes


CAUSES: dict[str, Cause] = _parse(CATALOGUE)
