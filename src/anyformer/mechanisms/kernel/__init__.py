"""Kernels: softmax is replaced by a product of feature maps, which can be summed in any order."""
