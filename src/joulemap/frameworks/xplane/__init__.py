"""XPlane, the profile format of TensorFlow and JAX, read into columns."""
