"""The research questions of FECoM (Rajput et al., *Enhancing Energy-Awareness in Deep Learning through
Fine-Grained Energy Measurement*), on its published data and on live programs."""
