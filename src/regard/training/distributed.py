"""Lightning's fabric, by whichever name it is installed."""

try:  # the small package, or the large one that holds it
    from lightning_fabric import Fabric
    from lightning_fabric.wrappers import _FabricModule as FabricModule
except ImportError:  # pragma: no cover
    from lightning.fabric import Fabric  # type: ignore[import-not-found, no-redef]
    from lightning.fabric.wrappers import (  # type: ignore[import-not-found, no-redef]
        _FabricModule as FabricModule,
    )

__all__ = ["Fabric", "FabricModule"]
