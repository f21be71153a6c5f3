module pawl.run/tests/tools/none

go 1.24.5
