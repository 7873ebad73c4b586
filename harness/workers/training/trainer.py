"""Run one training job, from its first step or its last checkpoint to the end.

The order of floating-point sums determines the last bits of the result. A resumed run must produce the same
bits as an uninterrupted one. Therefore, the sequences (data_order.py), the learning rate and the evaluation
batches are functions of the step. DDP sums gradients in buckets, and rebuilds the buckets after the first
backward pass, in the order in which the gradients arrived. The first step of a resumed run would thus use
different buckets than the same step of an uninterrupted run. Therefore, every run starts with a backward pass
that changes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from . import checkpoint, data_order, resume, state
from .checkpoint import Manifest, Unusable
from .evaluation import Loss, evaluate
from .options import changes, plain
from .ranks import Ranks, Refused
from .run_lock import RunLock
from .token_sequences import Stream, fingerprint
from .trackers import Trackers

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """The model, the optimizer and the rest of the training state."""

    def __init__(
        self, options: argparse.Namespace, ranks: Ranks, model: nn.Module, train: Stream, val: Stream
    ) -> None:
        self.options, self.ranks, self.train, self.val = options, ranks, train, val
        self.run: Path = options.out_dir / options.run
        self._lock: RunLock | None = None
        self._texts, self._val_texts = fingerprint(train), fingerprint(val)
        self.per_epoch = data_order.steps(train.whole, options.batch)
        self.steps = self.per_epoch * options.epochs
        if options.max_steps is not None:
            self.steps = min(self.steps, options.max_steps)
        self.model = model.to(ranks.device)
        self.optimizer = torch.optim.AdamW(_groups(self.model, options.weight_decay), lr=options.lr)
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=options.amp == "fp16")
        self.step, self.best, self.best_since = 0, math.inf, 0
        compiled: Any = torch.compile(self.model) if options.compile else self.model
        local = [ranks.device.index] if ranks.device.type == "cuda" else None
        self.parallel = DistributedDataParallel(compiled, device_ids=local) if ranks.world > 1 else compiled
        torch.manual_seed(self._seed(0))
        self._open_run()
        self._first_backward()
        self._resume()
        self.trackers = Trackers(
            *(options.run, ranks.rank, ranks.world, plain(options), self.run, self.step, ranks.of_rank_0),
            say=lambda text: ranks.say("TRAIN", text),
            seconds=options.tracker_seconds,
        )

    def train_all(self) -> Loss:
        """Train to the end. Return the last validation loss."""
        loss: Loss | None = None
        start, first = time.monotonic(), self.step
        while self.step < self.steps:
            self._one_step()
            if self.step % self.options.log_every == 0 or self.step == self.steps:
                self._tell(start, first)
            is_epoch_end = self.step % self.per_epoch == 0 or self.step == self.steps
            if is_epoch_end:
                loss = self._end_epoch()
            elif self.step % self.options.save_every == 0:
                self.save({})
        if loss is None:  # The run was resumed after the last step.
            loss = self._evaluate()
        return loss

    def save(self, losses: dict[str, float]) -> Path:
        """Write a checkpoint, and remove old ones. Return the new checkpoint's folder on every rank.

        First, wait until all logged values are acknowledged or on disk, because a resumed run does not
        log them again.
        """
        self.trackers.settle()
        self._still_writer()
        is_best = losses.get("val/loss", math.inf) < self.best
        self.best = min(self.best, losses.get("val/loss", math.inf))
        epoch, place = divmod(self.step, self.per_epoch)
        manifest = Manifest(
            *(epoch, self.step, place * self.options.batch, self.ranks.world, self._order()),
            options=plain(self.options),
            losses=losses
            | {resume.VAL_BEST: self.best, resume.VAL_TEXTS: self._val_texts}
            | {resume.VAL_SINCE: self.best_since},
        )
        folder = state.save(self.run, manifest, self.model, self.optimizer, self.scaler, self.ranks)
        if self.ranks.rank == 0:
            if is_best:
                checkpoint.point_best(self.run, folder)
            checkpoint.retain(self.run, self.options.keep, self.step)
        return folder

    def weights(self) -> str:
        """Return the SHA-256 digest of all weights, for a bitwise comparison of two runs."""
        hasher = hashlib.sha256()
        for name, value in state.unique(self.model).items():
            hasher.update(name.encode())
            hasher.update(value.contiguous().view(torch.uint8).numpy().tobytes())
        return hasher.hexdigest()

    # -- one step ----------------------------------------------------------------------------------------
    def _one_step(self) -> None:
        """Train for one step on all ranks, and log the mean loss over all tokens in the batch."""
        options, ranks = self.options, self.ranks
        epoch, place = divmod(self.step, self.per_epoch)
        batch = data_order.batch_of(
            options.seed, epoch, self.train.whole, place * options.batch, options.batch
        )
        share = data_order.share(batch, ranks.rank, ranks.world)
        for group in self.optimizer.param_groups:
            group["lr"] = data_order.rate(self.step, self.steps, options.warmup, options.lr)
        total = self._backward(share, len(batch))
        self.scaler.unscale_(self.optimizer)
        if options.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        own = total / max(1, len(share) * self.train.context)
        loss = ranks.sum(total) / (len(batch) * self.train.context)
        if not math.isfinite(loss):
            if math.isfinite(own):
                # Wait until a rank with an infinite or NaN loss exits. This collective then fails.
                ranks.every(None)
            raise FloatingPointError(
                f"the loss of step {self.step} is {loss}: use a smaller --lr, or --amp off"
            )
        values = {f"rank{ranks.rank}/train/loss": own} | _sequence_values(ranks.rank, share)
        if ranks.rank == 0:
            values |= {"train/loss": loss, "train/lr": self.optimizer.param_groups[0]["lr"]}
            values |= {"train/ranks": ranks.world}
        self.trackers.log(self.step, values)
        self.step, self.loss = self.step + 1, loss

    def _backward(self, sequences: Any, count: int) -> float:
        """Accumulate the gradients for this rank's sequences. Return the sum of the losses over their tokens.

        `count` is the number of sequences on all ranks. DDP divides gradients by the number of ranks, so each
        rank's loss is multiplied by that number. The result is the gradient of the batch's mean loss, however
        the batch is divided among the ranks. A rank without sequences processes one sequence with weight 0.
        """
        size, total = self.options.micro_batch, 0.0
        parts = [sequences[first : first + size] for first in range(0, len(sequences), size)] or [[0]]
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            sync_context = nullcontext() if last or self.ranks.world == 1 else self.parallel.no_sync()
            with sync_context:
                sum_ = self._loss_of(part)
                factor = self.ranks.world / (count * self.train.context) if sequences else 0.0
                self.scaler.scale(sum_ * factor).backward()
            total += float(sum_.detach()) if sequences else 0.0
        return total

    def _loss_of(self, sequences: Any) -> torch.Tensor:
        """Return the sum of the losses over all tokens in the given sequences."""
        rows = [self.train.sequence(index) for index in sequences]
        tokens = torch.tensor(rows, device=self.ranks.device)
        type_ = _TYPES.get(self.options.amp)
        with torch.autocast(self.ranks.device.type, dtype=type_, enabled=type_ is not None):
            logits = self.parallel(tokens[:, :-1])
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="sum"
        )

    def _first_backward(self) -> None:
        """Make DDP build its buckets without changing the gradients, the random generators or the step."""
        before = state.generators()
        self._loss_of([0]).mul(0.0).backward()
        self.optimizer.zero_grad(set_to_none=True)
        state.give_back(before)

    # -- epochs ------------------------------------------------------------------------------------------
    def _end_epoch(self) -> Loss:
        """Log the validation loss at the end of an epoch, write a checkpoint, and return the loss."""
        loss = self._evaluate()
        epoch = -(-self.step // self.per_epoch)
        if self.ranks.rank == 0:
            # Log the values for the step that was completed last. A metric can have one value per step.
            self.trackers.log(self.step - 1, {"val/loss": loss.mean, "val/perplexity": loss.perplexity})
        is_best = loss.mean < self.best
        losses = {"val/loss": loss.mean, "val/perplexity": loss.perplexity, "val/tokens": loss.tokens}
        folder = self.save(losses)
        self.ranks.tell(
            "EPOCH",
            f"{epoch}/{self.options.epochs} step {self.step}: validation loss {loss.mean:.6f} nats over "
            f"{loss.tokens} tokens, perplexity {loss.perplexity:.4f}; {'the best, ' * is_best}{folder}",
        )
        return loss

    def _evaluate(self) -> Loss:
        ranks = self.ranks
        # Do not use self.parallel, because DDP's forward pass would wait for ranks that have fewer chunks.
        return evaluate(self.model, self.val, self.options.micro_batch, ranks.rank, ranks.world, ranks.device)

    def _tell(self, start: float, first: int) -> None:
        elapsed = time.monotonic() - start
        speed = (self.step - first) / elapsed
        tokens = speed * self.options.batch * self.train.context
        rest = (self.steps - self.step) / speed
        self.ranks.tell(
            "TRAIN",
            f"step {self.step}/{self.steps} loss {self.loss:.4f} {tokens:.0f} tokens/s, {rest:.0f} s left",
        )

    # # -- startup -----------------------------------------------------------------------------------------
    def _open_run(self) -> None:
        """Create or check the run's folder, and lock it. Errors are raised as Refused on every rank."""

        def opened() -> None:
            resume.open_run(self.run)
            lock = RunLock(self.run, lambda text: self.ranks.tell("TRAIN", text))
            lock.acquire()
            self._lock = lock

        self._on_rank_0(opened)

    def close(self) -> None:
        """Release the lock on the run's folder, if this rank holds it."""
        if self._lock is not None:
            self._lock.release()

    def _still_writer(self) -> None:
        """Raise an error on every rank if another attempt or launch has taken over the run."""
        lock = self._lock
        if other := self._on_rank_0(lambda: lock.lost() if lock else ""):
            raise RuntimeError(f"a later attempt of this launch is writing to {self.run}: {other}")

    def _on_rank_0(self, call: Callable[[], Any]) -> Any:
        """Run a function on rank 0, and return its result on every rank.

        Unusable becomes Refused on every rank.
        """
        result, error_text = None, ""
        if self.ranks.rank == 0:
            try:
                result = call()
            except Unusable as error:
                error_text = f"{error}"
        result, error_text = self.ranks.of_rank_0((result, error_text))
        if error_text:
            raise Refused(error_text)
        return result

    def _resume(self) -> None:
        """Restore the newest intact checkpoint, if there is one. Raises Refused if it cannot be used."""

        def found() -> resume.Resumed | None:
            checkpoint.tidy(self.run)
            return resume.resumable(self.run, lambda text: self.ranks.tell("TRAIN", text), self._val_texts)

        newest = self._on_rank_0(found)
        if newest is None:
            return
        folder, manifest, self.best, self.best_since = newest
        order = self._order()
        if other := [name for name, value in manifest.order.items() if order.get(name) != value]:
            before, now = ({name: values.get(name) for name in other} for values in (manifest.order, order))
            reason = (
                "the texts or the tokenizer have changed"
                if other == ["texts"]
                else f"{before} has become {now}"
            )
            raise Refused(
                f"{folder} cannot be resumed, because the order of the data would differ: {reason}. "
                "Use another --run-name to start over"
            )
        try:
            state.restore(folder, manifest, self.model, self.optimizer, self.scaler, self.ranks)
        except Unusable as error:
            raise Refused(f"{error}. Use another --run-name to start over") from error
        self.step = manifest.step
        text = f"resumed at step {self.step} of {self.steps} from {folder}"
        if manifest.world != self.ranks.world:
            torch.manual_seed(self._seed(self.step))
            text += f", which {manifest.world} ranks wrote"
        if self.step >= self.steps:
            text += "; no steps are left to train"
        if changed := changes(manifest.options, plain(self.options)):
            text += f"; options that changed since then: {changed}"
        self.ranks.tell("TRAIN", text)

    def _order(self) -> dict[str, int]:
        """Return the values that determine the data order."""
        names = {"seed": self.options.seed, "batch": self.options.batch}
        names |= {"sequences": self.train.whole, "context": self.train.context}
        return names | {"texts": self._texts}

    def _seed(self, step: int) -> int:
        """Return the seed for this rank's random generators at a step. It is different on each rank."""
        text = f"{self.options.seed}/{step}/{self.ranks.rank}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def _sequence_values(rank: int, sequences: Sequence[int]) -> dict[str, float]:
    """Return metrics that identify a rank's sequences: count, sum and sum of squares of the indices.

    The metrics are exact in float64 if the sum of squares is below 2^53.
    """
    sums = {"count": len(sequences), "sum": sum(sequences), "squares": sum(one * one for one in sequences)}
    return {f"rank{rank}/data/{name}": float(value) for name, value in sums.items()}


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups, because weight decay applies only to matrices."""
    trainable = [value for value in model.parameters() if value.requires_grad]
    return [
        {"params": [value for value in trainable if value.dim() >= 2], "weight_decay": decay},
        {"params": [value for value in trainable if value.dim() < 2], "weight_decay": 0.0},
    ]
