"""The CRDs: the types of their fields, names, labels and conditions. Pure."""
