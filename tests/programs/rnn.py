"""Recurrent layers: an embedding, a bidirectional LSTM and a GRU predict the next symbol."""

import keras
from toys import sequences, show

keras.utils.set_random_seed(2)
model = keras.Sequential(
    [
        keras.layers.Input((12,)),
        keras.layers.Embedding(10, 16, name="symbols"),
        keras.layers.Bidirectional(keras.layers.LSTM(12, return_sequences=True), name="both_ways"),
        keras.layers.GRU(16, name="summary"),
        keras.layers.Dense(10, activation="softmax", name="next_symbol"),
    ]
)
model.compile(keras.optimizers.RMSprop(0.01), "sparse_categorical_crossentropy")
history = model.fit(*sequences(192), batch_size=32, epochs=2, verbose=0)
show("loss", *history.history["loss"])
show("next", model.predict(sequences(5, seed=3)[0], verbose=0).argmax(-1))
