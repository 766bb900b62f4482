"""Where a program's steps lie, found from what its modules, optimizers and data loaders do.

- A training step ends when an optimizer's step ends. It begins with the first outermost call of a module
  after the last one, or with the data loader's ``next`` before that. What is done in between (evaluation,
  saving) is no part of it. A step is interrupted where the model that learns in it is called in evaluation
  mode without gradients, and its last pass was differentiated: what was done until then is one, and what
  follows. What is evaluated before that is a part of the step.
- Gradient accumulation is one step: it has one optimizer step. Optimizers that step right after each other
  (one for the embeddings, one for the rest) end one step together. Those with forward passes in between (the
  two of a GAN) end steps of different kinds: ``train`` and ``train 2``. So do those of models that are
  trained one after the other, unless the optimizers are of one class for as many parameters.
- An outermost call without gradients, or of a module in evaluation mode, outside of a training step is a
  step of ``inference``, and of ``inference 2`` where it is another model's (``kinds``).
- Where a backward pass follows calls of modules, and no optimizer's step follows that, a step lasts until the
  next call: ``train``, or ``gradients`` where the first module is in evaluation mode (``by_hand``).
- A program that calls no module between two steps of its optimizer has steps from end to end; so has one
  whose modules are called by other threads than the one in which its optimizer steps.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

from joulemap.frameworks.torch.aside import aside, unseen
from joulemap.frameworks.torch.borders import NONE, PENDING, Borders, Thread, nobody
from joulemap.frameworks.torch.by_hand import FEW, ByHand, Step, following
from joulemap.frameworks.torch.given import ABSENT
from joulemap.frameworks.torch.kinds import (
    INFERENCE,
    TOO_MANY,
    TRAIN,
    InferenceKinds,
    TrainingKinds,
)
from joulemap.frameworks.watch import Watch

_FORWARDS = 64
"""A training step has at most so many outermost calls, until one was seen to have more: a program that has
gradients on and never uses them makes no steps of training."""


_REMEMBERED = 1000
"""Modules that were called with gradients: a program may make one for every call."""


class StepFinder(Borders):
    """Told of calls by hooks, tells a ``StepListener`` of steps. ``alike`` is the ``id`` of a module of which
    next to nothing needs to be said when it is called the next time, as ``notes`` does: it is inference, as
    before, or training where it ``learns``, one call and one step of the same optimizer."""

    def __init__(self, watch: Watch, settle: Callable[[], None]) -> None:
        super().__init__(watch, settle)
        self.alike = 0
        self.learns = False
        self.notes: Callable[[], bool] = bool
        self._called: Callable[[], Any] = nobody
        self._optimizer: Callable[[], Any] = nobody
        self._noted = TRAIN
        self._kinds = InferenceKinds()
        self._trained = TrainingKinds()
        self._learners: dict[int, Callable[[], Any]] = {}
        self._not_last: set[int | None] = set()
        self._after: dict[int, str] = {}
        self._end_to_end = False
        self._learner: int | None = None
        self._steppers: set[int] = set()
        self._hand = ByHand()
        self._apart = False
        self._most_calls = _FORWARDS
        self._never_ends = False
        self._aside = aside(watch)
        unseen(self._loader_is_gone)  # garbage may be collected in the middle of compiled code

    def call_begins(self, learns: bool, module: Any, evaluates: bool = False, numbers: int = ABSENT) -> None:
        """An outermost module is called with so many ``numbers``; ``learns`` says that a backward pass may
        follow, ``evaluates`` that none can, since the module is in evaluation mode and gradients are off."""
        thread = self._here()
        self._called = weakref.ref(module)
        self._end_what_is_over(thread)
        if learns and self._is_apart():
            return
        self._end_to_end = False
        thread.calls += 1
        if thread.state == TRAIN:
            thread.pending |= learns
            if evaluates and not thread.pending and self._learners.get(id(module), nobody)() is module:
                self._close(self._expected(thread.last))
                thread.interrupted = True
            elif thread.calls > self._most_calls:
                self._never_ends = True
                self._close(INFERENCE)
            else:
                return
        if learns:
            if len(self._learners) >= _REMEMBERED:
                self._learners.clear()
            self._learners[id(module)] = self._called
            thread.pending = True
        by_hand = self._by_hand(module, learns)
        kind = TRAIN if by_hand or (learns and not self._never_ends) else INFERENCE
        thread.was_fed_from, thread.was_fed_by = thread.loader or nobody, thread.fed_by
        if kind == INFERENCE:
            thread.inference = self._kinds.label(module, numbers, fed=thread.fed_by is not None)
        if self._kinds.too_many:
            self._watch.note(TOO_MANY)
        label = thread.inference if kind == INFERENCE else self._expected(thread.last)
        self._open(kind, label if by_hand is None else by_hand.label, by_hand)

    def _by_hand(self, module: Any, learns: bool) -> Step | None:
        """The step that a call begins which no optimizer will end, as far as is known."""
        thread = self._thread
        if learns or self.in_others or not sys.modules["torch"].is_grad_enabled():
            thread.passes = None if learns else thread.passes
            return None
        thread.passes, step = following(thread.passes, module), self._hand.step(module)
        if step is not None and thread.passes.module() is module:
            thread.passes = None
        return step

    def _end_what_is_over(self, thread: Thread) -> None:
        """Something begins, which no step is a part of that waits for it."""
        if thread.waits:
            self._wait_no_more()
        if thread.by_hand is not None and not (thread.pending and thread.calls < FEW):
            self._end_by_hand(thread.by_hand)

    def _end_by_hand(self, step: Step) -> None:
        """Where no backward pass has followed, its calls were inference."""
        thread = self._thread
        label = INFERENCE if thread.pending else self._hand.ended(step)
        if thread.pending:
            self._hand.forget(step)
        if label:
            self._close(label)
        else:
            self._watch.steps.cancel()
            self._none_lasts()

    def _is_apart(self) -> bool:
        """Whether a call of this thread's begins no step of training, since another thread's optimizer steps
        for it. One that it has begun before that was known is none."""
        me = get_ident()
        self._learner = me
        if not self._apart or me in self._steppers:
            return False
        if self._thread.state == TRAIN:
            self._watch.steps.cancel()
            self._thread.state = NONE
        return True

    def differentiates(self, again: bool = False) -> None:
        """A backward pass begins in this thread; ``again`` says that another one may go through it."""
        thread = self._thread
        thread.within = self.quick.open
        if thread.by_hand is None and thread.passes is None:
            thread.pending = False
        elif not again and not self.quick.threads.inside:
            thread.pending = False
            if thread.passes is not None:
                self._hand.learn(thread.passes)
                thread.passes = None

    def call_ends(self) -> None:
        """That call has returned, or failed."""
        if self._thread.state == INFERENCE:
            self._close(self._thread.inference, done=False)

    def expect_inference(self, module: Any, numbers: int) -> None:
        """The step that has begun with its call may be followed by others like it, given about as much."""
        label = self._thread.inference
        if self._thread.state != INFERENCE or self._thread.was_fed_by is not None:
            return
        self.alike, self.learns = id(module), False
        self.notes, self._noted = self._notes_inference, label
        self.quick.expect(module, label, between=self._kinds.between(label, numbers))

    def expect_nothing(self) -> None:
        """What comes next may be anything."""
        self.alike = self.quick.module = 0

    def _expect_training(self, key: int) -> None:
        """The same of the step that has ended with this optimizer's."""
        module, self._optimizer, self._noted = self._called(), self._trained.optimizer(key), self._label(key)
        self.alike, self.learns, self.notes = id(module) * (module is not None), True, self._notes_training
        thread = self._thread
        if module is not None and thread.fed_by is None:  # else that is still to be learned from
            feeds = thread.was_fed_by is not None and self._feeds.get(thread.was_fed_by) == self._noted
            fed = thread.was_fed_from if feeds else nobody, thread.was_fed_by
            self.quick.expect(module, self._noted, self._optimizer, fed)

    def _notes_inference(self) -> bool:
        """A call is a step of inference like the one before it; False where that is not so sure."""
        if not self._begun(self._watch.steps.noted, self._noted):
            return False
        self._thread.state, self._thread.inference = INFERENCE, self._noted
        return True

    def noted_inference_ends(self) -> None:
        """Such a call has returned, or failed."""
        if self._thread.state == INFERENCE:
            self._end()

    def _notes_training(self) -> bool:
        """A call begins a step of training like the one before it; False where that is not so sure."""
        module, differentiates = self._called(), sys.modules["torch"]._C._current_graph_task_id() != -1
        if module is None or not module.training or differentiates:
            return False
        thread = self._thread
        loaded = thread.state == PENDING and thread.fed_by is not None and thread.fed_by == thread.was_fed_by
        if not loaded and not self._begun(self._watch.steps.noted, self._noted):
            return False
        if thread.fed_by is not None:
            self._feeds[thread.fed_by] = self._noted
        thread.state, thread.calls, thread.fed_by, thread.loader = TRAIN, 1, None, None
        return True

    def _notes_loading(self, iterator: Any, dataset: Any) -> bool:
        """A batch begins a step of training like the one before it; False where that is not so sure."""
        thread, fed_by = self._thread, id(dataset)
        alike = self.alike and self.learns and thread.was_fed_by == fed_by
        sure = alike and thread.state == NONE and self._feeds.get(fed_by) == self._noted
        loader = weakref.ref(iterator, self._loader_is_gone) if sure else None
        if not sure or not self._begun(self._watch.steps.noted, self._noted):
            return False
        thread.state, thread.fed_by, thread.loader = PENDING, fed_by, loader
        return True

    def is_as_noted(self, optimizer: Any) -> bool:
        """Whether nothing needs to be said when this optimizer's step begins: its step of training was only
        noted."""
        return self.learns and self.alike != 0 and self._optimizer() is optimizer and self._thread.calls == 1

    def noted_training_ends(self) -> None:
        """Such an optimizer's step has ended."""
        thread = self._thread
        if thread.state == TRAIN:
            thread.calls = 0
            self._end(done=True)

    def optimizer_begins(self, optimizer: Any, has_closure: bool) -> None:
        """An optimizer's step begins; with a closure, the forward and backward passes are inside it."""
        thread = self._here()
        key, me = self._key(optimizer), get_ident()
        self.expect_nothing()
        if thread.by_hand is not None:
            self._hand.rename(thread.by_hand, self._label(key))
            thread.by_hand = self._lasts_in = None
        thread.passes = None
        self._apart |= self._learner not in (None, me) and not (thread.calls or has_closure)
        self._steppers.add(me)
        if self._apart and thread.state == NONE and not thread.calls:
            self._watch.steps.forget_others()  # a call that would do so itself may not be heard beside others
        if thread.state == PENDING or (thread.state == NONE and (has_closure or thread.interrupted)):
            self._open(TRAIN, self._expected(thread.last))
        elif thread.state != NONE:
            thread.state, thread.waits = TRAIN, False
        elif not thread.calls and thread.last == key:
            self._end_to_end = True
        elif not thread.calls and thread.last is not None:
            self._not_last.add(thread.last)

    def optimizer_ends(self, optimizer: Any) -> None:
        """It has ended, and with it the step of training, unless another optimizer is known to follow."""
        thread = self._here()
        key = self._key(optimizer)
        if thread.calls > self._most_calls or self._never_ends:
            self._most_calls, self._never_ends = max(4 * thread.calls, self._most_calls), False
        thread.interrupted = False
        if thread.first is None:
            thread.before = thread.last
        first = key if thread.first is None else thread.first
        if thread.state == TRAIN and key in self._not_last:
            thread.first = first
            thread.waits = True
        elif thread.state == TRAIN:
            if thread.before is not None:
                self._after[thread.before] = self._label(first)
            self._close(self._label(first))
            if thread.last == key and thread.calls == 1:
                self._expect_training(key)
        thread.last, thread.calls, self._learner = key, 0, None
        if self._end_to_end and thread.state == NONE:
            self._open(TRAIN, self._expected(thread.last))

    def loading_begins(self, iterator: Any, dataset: Any) -> None:
        """A data loader is asked for the next batch."""
        thread = self._here()
        if self._notes_loading(iterator, dataset):
            return
        self.expect_nothing()
        self._end_what_is_over(thread)
        if thread.state == PENDING:
            self._cancel()
        thread.fed_by = id(dataset)
        expected = self._feeds.get(id(dataset))
        if thread.state == NONE and expected is not None and not self._watch.steps.is_open():
            thread.loader = weakref.ref(iterator, self._loader_is_gone)
            self._begun(self._watch.steps.begin, expected)
            thread.state = PENDING

    def loading_ends(self, exhausted: bool) -> None:
        """It has no more, or has failed."""
        if exhausted:
            thread = self._here()
            if thread.state == PENDING:
                self._cancel(forget=False)
            thread.fed_by = None

    def _loader_is_gone(self, loader: weakref.ref[Any]) -> None:
        self._aside(self._cancel_what_it_began, loader)

    def _cancel_what_it_began(self, loader: weakref.ref[Any]) -> None:
        thread = self._here()
        if thread.state == PENDING and thread.loader is loader:
            self._cancel()

    def _wait_no_more(self) -> None:
        """The optimizer that was to follow does not."""
        self._not_last.discard(self._thread.last)
        self._close(self._label(self._thread.first))

    def _expected(self, last: int | None) -> str:
        """The kind of step that came after this optimizer's the last time."""
        return TRAIN if last is None else self._after.get(last, self._label(last))

    def _key(self, optimizer: Any) -> int:
        """The number of an optimizer; a new one that takes the place of none may be the last of its step."""
        number, in_place = self._trained.number(optimizer)
        if not in_place:
            self._not_last.discard(number)
        return number

    def _label(self, key: int | None) -> str:
        return self._trained.label(key)
