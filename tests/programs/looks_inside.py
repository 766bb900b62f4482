"""Looks at itself: how it was started, what its functions look like, what pickle makes of its objects."""

import copy
import inspect
import pickle
import sys
import threading

import keras
import tensorflow as tf
from toys import points, show

print(__name__, __file__ == sys.argv[0], __spec__, __doc__.split(":")[0], sys.argv[1:])
print("first on the path is mine:", sys.path[0] == __file__.rpartition("/")[0])
print(
    "main is me:", sys.modules["__main__"].points is points, sys.flags.utf8_mode, threading.main_thread().name
)
print("threads", [one.name for one in threading.enumerate()])


@tf.function
def double(number: tf.Tensor) -> tf.Tensor:
    """Twice as much."""
    return number * 2


keras.utils.set_random_seed(26)
model = keras.Sequential(
    [keras.layers.Input((8,)), keras.layers.Dense(4, name="four"), keras.layers.Dense(1)]
)
model.compile("adam", "mse")
for thing in (keras.Model.fit, keras.layers.Layer.__call__, tf.GradientTape.gradient, double, model.call):
    print(
        getattr(thing, "__qualname__", type(thing)),
        inspect.signature(thing),
        (inspect.getdoc(thing) or "")[:40],
    )
print(
    double.__name__, double.pretty_printed_concrete_signatures() or "untraced", int(double(tf.constant(21)))
)
print(
    type(model.layers[0]).__mro__[1:3], sorted(vars(model.layers[0]))[:5], keras.layers.Dense.call.__module__
)
inputs, targets = points(64)
show("loss", *model.fit(inputs, targets, epochs=2, verbose=0).history["loss"])
for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
    show("copy", other.predict(inputs, verbose=0), other.train_on_batch(inputs, targets))
gathered = []
thread = threading.Thread(target=lambda: gathered.append(model.predict(inputs, verbose=0)))
thread.start()
thread.join()
show("in a thread", gathered[0])
