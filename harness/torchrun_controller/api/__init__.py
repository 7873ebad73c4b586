"""The API of the CRDs: field types, names, labels and conditions. These modules perform no I/O."""
