"""Law 4: any chunking equals the whole pass, and old states stay what they were."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="linear",
        old="z_before = torch.cat([z_.unsqueeze(0), fk.sum(3)]).cumsum(0)",
        new="z_before = torch.cat([z_.unsqueeze(0) * 0, fk.sum(3)]).cumsum(0)",
        mimics="chunked differs from whole (flash-linear-attention #285, #494)",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="linear",
        old="S, z, s = S.clone(), z.clone(), s.clone()",
        new="S, z, s = S.detach(), z.detach(), s.detach()",
        mimics="the state changed in place, so that an older one changes with it",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="linear",
        old="return y, Sums(S, z, s, before.position + k.shape[2])",
        new="return y, Sums(S.detach(), z.detach(), s, before.position + k.shape[2])",
        mimics="gradients stop at the border of a chunk",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="local",
        old="self.window, self.horizon = window, window - 1",
        new="self.window, self.horizon = window, window - 2",
        mimics="a cache shorter than the window",
    ),
    Saboteur(
        mechanism="local",
        old="self.window, self.horizon = window, window - 1",
        new="self.window, self.horizon = window, None",
        mimics="a state called constant that keeps every token",
    ),
    Saboteur(
        mechanism="softmax",
        old="newest = bool((state.filled_B == state.position).all())",
        new="newest = True",
        mimics="a cache written behind an older state overwrites the newer one's tokens",
        file="contract.py",
    ),
    Saboteur(
        mechanism="softmax",
        old="room[axis] = past + new + SPARE",
        new="room[axis] = 0",
        mimics="a cache that copies itself at each token",
        file="contract.py",
    ),
    Saboteur(
        mechanism="softmax",
        old="keep_BM = None if state.keep_BS is None else state.keep_BS[:, seen]",
        new="keep_BM = keep_BN if state.position == q_BHND.shape[2] else None",
        mimics="padding of earlier chunks forgotten",
        file="contract.py",
    ),
    Saboteur(
        mechanism="softmax",
        old="return Held(k_BHMD, v_BHME, keep_BM)",
        new="return Held(k_BHMD, v_BHME, None)",
        mimics="a prepared context forgets its mask",
        file="contract.py",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="self.project(x, out)",
        new="self.project(x, out).sub_(0 if query else out.flatten()[0].clone())",
        mimics="a stabiliser taken from each call's first key",
    ),
]
