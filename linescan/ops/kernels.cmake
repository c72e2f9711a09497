# The CUDA kernels, relative to linescan/: compiled by nvcc into linescan_kernels, and as C++ for the
# emulator that judges them where there is no GPU (tests/ops).
set(LINESCAN_KERNELS
  ops/causal_conv1d/backward.cu
  ops/causal_conv1d/forward.cu
  ops/depthwise_conv/backward.cu
  ops/depthwise_conv/forward.cu
  ops/device_code/ordered_sums.cu
  ops/gated_delta_rule/chunk_gradients.cu
  ops/gated_delta_rule/chunk_records.cu
  ops/gated_delta_rule/chunk_scan.cu
  ops/gated_delta_rule/passes.cu
  ops/gated_delta_rule/recurrence.cu
  ops/gated_delta_rule/reverse_scan.cu
  ops/layer_norm/backward.cu
  ops/layer_norm/forward.cu
  ops/selective_scan/backward.cu
  ops/selective_scan/forward.cu
  ops/selective_scan/many_states_backward.cu
  ops/selective_scan/one_state_backward.cu
  ops/selective_scan/one_state_forward.cu
  ops/ss2d/backward.cu
  ops/ss2d/backward_sums.cu
  ops/ss2d/forward.cu
  ops/ss2d/packed_backward.cu
  ops/ss2d/packed_forward.cu
  ops/ss2d/packed_tile_states.cu
  ops/ss2d/tile_states.cu)
