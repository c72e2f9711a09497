"""linescan.selective_scan from Python: a scan in two pieces equals the scan in one."""
import torch

import linescan

torch.manual_seed(1)
batch, channels, length, states = 2, 6, 40, 4
u, delta = torch.randn(batch, channels, length), torch.randn(batch, channels, length)
B, C = torch.randn(batch, 1, states, length), torch.randn(batch, 1, states, length)
A = -torch.rand(channels, states)

whole, last = linescan.selective_scan(u, delta, A, B, C, delta_softplus=True)

cut = 17
first, state = linescan.selective_scan(u[..., :cut], delta[..., :cut], A, B[..., :cut], C[..., :cut],
                                       delta_softplus=True)
second, state = linescan.selective_scan(u[..., cut:], delta[..., cut:], A, B[..., cut:], C[..., cut:],
                                        initial_state=state, delta_softplus=True)
torch.testing.assert_close(torch.cat([first, second], dim=-1), whole)
torch.testing.assert_close(state, last)
print("two pieces equal the whole:", tuple(whole.shape), "last state", tuple(last.shape))
