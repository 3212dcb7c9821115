"""Exported: an array of another maker, for tests of DLPack."""


class Exported:
    """An array that offers only DLPack."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()
