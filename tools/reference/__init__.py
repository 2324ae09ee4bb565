"""The reference side of Pagoda: the same data order, masks and loss written again in Python.

Nothing here is used by the trainer; make_goldens, check_export and parity_train compare against it.
"""
