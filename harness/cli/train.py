"""`harness train`: launch the trainers on several nodes, and prove that what is killed comes back."""

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
        list[str] | None, typer.Argument(metavar="[-- OPTION…]", help="options of the trainer, after `--`")
    ] = None,
    kind: Annotated[str, typer.Option(help="statefulset, or job: an Indexed Job")] = "statefulset",
    replicas: Annotated[int, typer.Option(min=1, max=4096, help="pods, one node of torchrun each")] = 4,
    max_replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=4096,
            help="let `kubectl scale` change the number of pods, up to this one, while they train",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="ranks of each pod (1; its GPUs)")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus-per-pod", min=1, max=64, help="GPUs of each pod; without it CPUs")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="QUANTITY", help="most memory of each pod (8Gi on CPUs)")
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="how often each rank may run again")] = 3,
    rdzv: Annotated[
        str, typer.Option(help="c10d: nodes meet in node 0; etcd: in an etcd of this launch")
    ] = "c10d",
    rdzv_endpoint: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="with --rdzv etcd: one that is there (API v2)")
    ] = None,
    run_name: Annotated[str, typer.Option("--run", help="folder below /out; it is resumed")] = "train",
    smoke: Annotated[bool, typer.Option("--smoke", help="train.py, the guide's smoke test")] = False,
    trainer: Annotated[
        str,
        typer.Option(metavar="WORDS", help="Python module that torchrun runs, and words before its options"),
    ] = "training.train_framework",
    image: Annotated[str | None, typer.Option(help="one with /workspace/training (the worker image)")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="on kind: a folder with train.jsonl and val.jsonl (made)"),
    ] = None,
    volumes: Annotated[
        str | None, typer.Option(help="on kind: keep data and checkpoints in a folder of this name")
    ] = None,
    storage_class: Annotated[
        str | None, typer.Option(help="make claims of this class, for many writers (ReadWriteMany)")
    ] = None,
    claims_namespace: Annotated[
        str | None,
        typer.Option(help="use datasets-pvc, outputs-pvc and, where it exists, models-pvc of this namespace"),
    ] = None,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="train on made texts: no datasets-pvc is needed")
    ] = False,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="a Secret of yours whose keys become variables of the ranks: NAME or NAMESPACE/NAME of the "
            "cluster, or NAME=VARIABLE of this environment; hf-token is for gated models. Repeatable",
        ),
    ] = None,
    reach: Annotated[
        float | None,
        typer.Option(min=0, help="most that the loss may end above the known entropy (0.05: 5 %)"),
    ] = None,
    same_as: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="it must end with the weights of this training"),
    ] = None,
    upload: Annotated[
        str | None,
        typer.Option(
            metavar="s3://BUCKET/PREFIX",
            help="send the run there when the training has ended, each file verified; keys are AWS_… of this "
            "environment or of --secret",
        ),
    ] = None,
    resume_from: Annotated[
        str | None,
        typer.Option(
            metavar="s3://BUCKET/PREFIX", help="bring back a run that --upload sent, and go on with it"
        ),
    ] = None,
    print_manifests: Annotated[
        bool, typer.Option("--print-manifests", help="print what `kubectl apply -f -` takes, launch nothing")
    ] = False,
    pod: options.Pod = None,
    env: options.Env = None,
    launch: Launch = NOTHING,
) -> int:
    """Train a language model on several pods, and judge it: no restart may change the result.

    A StatefulSet (or an Indexed Job) of torchrun's nodes with a headless Service
    and volumes that all pods share. A rank, a node or a pod that is killed comes
    back and resumes from the last checkpoint. The verdict shows each restart, and
    that every point of every rank is in one Pluto run. Exit code, bundle and
    report are those of `harness run`. See docs/training.md.
    """
    from dataclasses import replace

    from harness.cli.printed_image import printed_image
    from harness.launch.names import LOCAL_IMAGE
    from harness.launch.user_secrets import wanted
    from harness.launch.workloads import training
    from harness.launch.workloads.asked_training import Asked
    from harness.launch.workloads.pod_options import pod_options

    if same_as is not None and smoke:
        raise UsageError("--same-as compares checkpoints, and the smoke test writes none")
    asked = Asked(
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
        named = replace(asked, image=printed_image(settings, image))
        pull_secret = (settings.image_pull_secret or "").rpartition("/")[2] or None
        print(training.manifests(named, options_of_pods, pull_secret), end="")
        return 0
    workload = options_of_pods.applied(training.workload(asked))
    return launch.show(launch.run(workload, settings))


def _words(trainer: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(trainer))
    except ValueError as error:
        raise UsageError(f"--trainer {trainer!r}: {error}") from None
    if not words or not all(part.isidentifier() for part in words[0].split(".")):
        raise UsageError(
            f"--trainer: the name of a Python module is expected, as of `python -m`; seen {trainer!r}",
            hint="it takes the options of training.train_framework, and is in the image",
        )
    return words


def _one_of(option: str, word: str, *known: str) -> Any:
    if word not in known:
        raise UsageError(f"{option}: {' or '.join(known)} is expected; seen {word!r}")
    return word
