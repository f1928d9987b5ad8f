"""A CUDA driver and a GPU for tests on machines that have neither.

`FakeProcess` runs functions in a process that finds the fake driver where it would find libcuda;
in there, `driver.Fake` says what was launched and makes calls fail, and `FakeDevice` stands in for
torch's GPU.
"""
