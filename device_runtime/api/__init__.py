"""The public Python API, one module for each thing that a script does; `device_runtime` exports it lazily."""
