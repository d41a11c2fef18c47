"""The checks' functions, by group. `DRV-03` is `drv_03`."""
