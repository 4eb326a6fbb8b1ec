"""Every figure of the PagedAttention paper, from the simulator that runs the real scheduler: `make paper`."""
