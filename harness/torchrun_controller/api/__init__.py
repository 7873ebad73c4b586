"""The API of the CRDs: field types, names, labels and conditions. These modules do no I/O."""
