"""`harness train`: train on several nodes, and check that killed ranks, nodes and pods recover."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli import options
from harness.cli.launch_options import NOTHING, Launch, launching
from harness.core.errors import UsageError


@launching
def train(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTION…]", help="options for the trainer, after `--`")
    ] = None,
    kind: Annotated[str, typer.Option(help="statefulset, or job for an Indexed Job")] = "statefulset",
    replicas: Annotated[
        int, typer.Option(min=1, max=4096, help="number of pods, each of which is a torchrun node")
    ] = 4,
    max_replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="let `kubectl scale` change the number of pods during training, up to this number",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="ranks per pod (default: the pod's GPUs, or 1)")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus-per-pod", min=1, max=64, help="GPUs per pod (default: train on CPUs)"),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="QUANTITY", help="memory limit per pod (default: 8Gi on CPUs)")
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="maximum number of restarts per rank")] = 3,
    rdzv: Annotated[
        str,
        typer.Option(help="rendezvous backend: c10d, which runs in node 0, or etcd, started for this launch"),
    ] = "c10d",
    rdzv_endpoint: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="with --rdzv etcd: use this existing etcd (API v2)"),
    ] = None,
    run_name: Annotated[
        str,
        typer.Option(
            "--run", help="folder of the run under /out; if the folder contains a run, this run is resumed"
        ),
    ] = "train",
    smoke: Annotated[
        bool, typer.Option("--smoke", help="run train.py, the training guide's smoke test")
    ] = False,
    trainer: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="the Python module that torchrun runs, and arguments to put before its options",
        ),
    ] = "training.train_framework",
    image: Annotated[
        str | None, typer.Option(help="image with /workspace/training (default: the worker image)")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="on kind: a folder with train.jsonl and val.jsonl (default: generated)"),
    ] = None,
    volumes: Annotated[
        str | None, typer.Option(help="on kind: keep data and checkpoints in a folder with this name")
    ] = None,
    storage_class: Annotated[
        str | None, typer.Option(help="create ReadWriteMany claims with this StorageClass")
    ] = None,
    claims_namespace: Annotated[
        str | None,
        typer.Option(help="use datasets-pvc, outputs-pvc and, if it exists, models-pvc of this namespace"),
    ] = None,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="train on generated text, which needs no datasets-pvc")
    ] = False,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="a Secret whose keys become environment variables of the ranks: NAME or NAMESPACE/NAME on "
            "the cluster, or NAME=VARIABLE from this environment; hf-token is for gated models; may be "
            "repeated",
        ),
    ] = None,
    reach: Annotated[
        float | None,
        typer.Option(min=0, help="maximum excess of the final loss over the known entropy; 0.05 means 5 %"),
    ] = None,
    same_as: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="require that the training ends with the same weights as this run"),
    ] = None,
    upload: Annotated[
        str | None,
        typer.Option(
            metavar="s3://BUCKET/PREFIX",
            help="upload the run after the training and verify each file, with the AWS_… variables of this "
            "environment or of --secret as credentials",
        ),
    ] = None,
    resume_from: Annotated[
        str | None,
        typer.Option(
            metavar="s3://BUCKET/PREFIX", help="download a run that --upload stored, and continue it"
        ),
    ] = None,
    print_manifests: options.PrintManifests = False,
    pod: options.Pod = None,
    env: options.Env = None,
    launch: Launch = NOTHING,
) -> int:
    """Train a language model on several pods, and judge the training.

    Each pod of a StatefulSet (or an Indexed Job) is a torchrun node. The pods have
    a headless Service and share volumes. If a rank, node or pod is killed, it
    restarts and resumes from the last checkpoint. A restart must not change the
    training result. The verdict shows each restart, and whether all points from all
    ranks are in one Pluto run. The exit code, bundle and report are like those
    of `harness run`. See docs/training.md.
    """
    from dataclasses import replace

    from harness.cli.printed_image import printed_image
    from harness.launch.labels import LOCAL_IMAGE
    from harness.launch.user_secrets import wanted
    from harness.launch.workloads import training
    from harness.launch.workloads.pod_options import pod_options
    from harness.launch.workloads.training_spec import TrainingSpec

    if same_as is not None and smoke:
        raise UsageError("--same-as compares checkpoints, and the smoke test writes none")
    spec = TrainingSpec(
        kind=_one_of("--kind", kind, "statefulset", "job"),
        replicas=replicas,
        max_replicas=max_replicas,
        processes=processes or gpus or 1,
        gpus=gpus,
        memory=memory,
        restarts=restarts,
        rdzv=_one_of("--rdzv", rdzv, "c10d", "etcd"),
        rdzv_endpoint=rdzv_endpoint,
        run=run_name,
        smoke=smoke,
        trainer=_words(trainer),
        options=tuple(more or ()),
        image=image or LOCAL_IMAGE,
        data=data,
        volumes=volumes,
        storage_class=storage_class,
        claims_namespace=claims_namespace,
        synthetic=synthetic,
        secrets=tuple(map(wanted, secret or ())),
        reach=reach,
        same_as=None if same_as is None else training.weights_of(same_as, launch.runs_dir or Path("runs")),
        upload=upload,
        resume_from=resume_from,
    )
    settings = launch.settings(pod=pod)
    options_of_pods = pod_options(settings, env)
    if print_manifests:
        print_spec = replace(spec, image=printed_image(settings, image))
        pull_secret = (settings.image_pull_secret or "").rpartition("/")[2] or None
        restricted = settings.pod_security == "restricted"
        print(training.manifests(print_spec, options_of_pods, pull_secret, restricted), end="")
        return 0
    workload = options_of_pods.applied(training.workload(spec))
    return launch.show(launch.run(workload, settings))


def _words(trainer: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(trainer))
    except ValueError as error:
        raise UsageError(f"--trainer {trainer!r}: {error}") from None
    if not words or not all(part.isidentifier() for part in words[0].split(".")):
        raise UsageError(
            f"--trainer: expected the name of a Python module, as for `python -m`, found {trainer!r}",
            hint="the module must be in the image and accept the options of training.train_framework",
        )
    return words


def _one_of(option: str, word: str, *choices: str) -> Any:
    if word not in choices:
        raise UsageError(f"{option}: expected {' or '.join(choices)}, found {word!r}")
    return word
