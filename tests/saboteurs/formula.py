"""Law 1: fast equals literal."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="softmax",
        old="return scaled_dot_product_attention(q, k, v, attn_mask=sees, is_causal=ordered and sees is None)",
        new="return (q @ k.transpose(-1, -2) / self.head_dim**0.5).softmax(-2) @ v",
        mimics="normalised over the wrong axis (flash-linear-attention #594, #850)",
    ),
    Saboteur(
        mechanism="softmax",
        old="weight_BHNM = score_BHNM.masked_fill(~sees, finfo(q.dtype).min).softmax(-1) * sees",
        new="weight_BHNM = score_BHNM.softmax(-1) * sees",
        mimics="the oracle itself is wrong: masked after normalising",
    ),
    Saboteur(
        mechanism="local",
        old="reach = slice(max(0, start - window + 1) // 16 * 16, stop if causal else min(M, stop + window - 1))",
        new="reach = slice(max(0, start - window + 1) // 16 * 16, stop if causal else min(M, stop + window - 2))",
        mimics="a window off by one at the edge of a block",
    ),
    Saboteur(
        mechanism="local",
        old="q, k, v, keep, y = ctx.saved_tensors",
        new="q, k, v, keep, y, dy = *ctx.saved_tensors, dy if all(dy.stride()) else dy.new_empty(dy.shape)",
        mimics="an expanded gradient read as dense: garbage for out.sum().backward() (fast-transformers)",
    ),
    Saboteur(
        mechanism="local",
        old="for first in range(0, N, ROWS):",
        new="for first in range(0, N - 1, ROWS):",
        mimics="a last block of one row is never written, and what the buffer held is returned",
    ),
    Saboteur(
        mechanism="linformer",
        old="return scaled_dot_product_attention(q_BHND, held.k_BHKD, held.v_BHKE)",
        new="return scaled_dot_product_attention(q_BHND.mT.reshape(q_BHND.shape), held.k_BHKD, held.v_BHKE)",
        mimics="an input in another layout read as if it were dense",
    ),
    Saboteur(
        mechanism="linear",
        old='dw = torch.bmm(within.mT, dnum_, out=room("spare", *w_.shape)).baddbmm_(fk_, later)',
        new='dw = torch.bmm(within.mT, dnum_, out=room("spare", *w_.shape))',
        mimics="the gradient of values forgets the queries of later blocks",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="linear",
        old="dS_.copy_(later[0])",
        new="later[0]",
        mimics="in a long sequence, gradients do not reach the chunks before",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="linear",
        old="for row in range(0, shape[2], rows):",
        new="for row in range(0, max(1, shape[2] // rows) * rows, rows):",
        mimics="in a long sequence, a last part of a chunk is never computed",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="linformer",
        old="return self.read(q, self.shorten(k, v))",
        new="return self.read(q, self.shorten(k, v.detach()))",
        mimics="outputs right, a gradient silently zero",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="return du * self.scale if self.W_PD is None else du @ self.W_PD.to(du.dtype)",
        new="return du * self.scale if self.W_PD is None else du @ torch.randn_like(self.W_PD).to(du.dtype)",
        mimics="features redrawn between forward and backward",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="self.project(x, out)",
        new="self.project(x, out).sub_(self.W_PD.to(x.dtype).square().sum(1) / 2)",
        mimics="a shift that queries subtract like keys, and must add",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="return torch.softmax(out.add_(s), -1, out=out) if phi.exponential else out",
        new="return torch.softmax(out.sub_(s), -1, out=out) if phi.exponential else out",
        mimics="the shift's sign",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="out.sub_(x.square().sum(-1, keepdim=True).mul_(self.scale**2 / 2))",
        new="pass",
        mimics="the norm of the keys left out",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="dx.addcmul_(x, du.sum(-1, keepdim=True), value=-(self.scale**2))",
        new="pass",
        mimics="the norm of the keys left out of the backward pass",
    ),
    Saboteur(
        mechanism="performer:hyperbolic",
        old="W_PD = torch.cat([W_PD, -W_PD])",
        new="W_PD = torch.cat([W_PD, W_PD])",
        mimics="hyperbolic features with one sign twice",
    ),
    Saboteur(
        mechanism="performer:relu",
        old="return self.unproject(df.mul_(f > self.epsilon))",
        new="return self.unproject(df)",
        mimics="relu's gradient where relu is flat",
    ),
    Saboteur(
        mechanism="linformer",
        old="return Short(mixed(E, k_BHMD), mixed(F, v_BHME))",
        new="return Short(mixed(E, k_BHMD), mixed(E, v_BHME))",
        mimics="E where F belongs",
    ),
    Saboteur(
        mechanism="linformer",
        old="x_BMC = x_BHMD.transpose(1, 2).flatten(2)",
        new="x_BMC = x_BHMD.reshape(batch, -1, heads * x_BHMD.shape[3])",
        mimics="heads and length confused",
    ),
    Saboteur(
        mechanism="linformer",
        old="_, k, v = self.checked(nobody, k_BHMD, v_BHME, keep_BM)",
        new="_, k, v = self.checked(nobody, k_BHMD, v_BHME, None)",
        mimics="a prepared context that forgets its mask",
    ),
    Saboteur(
        mechanism="lambda_layer:global",
        old="first = future + self.right + 1 - (columns if self.causal else keys)",
        new="first = future + self.right - (columns if self.causal else keys)",
        mimics="a position table read one place off",
    ),
    Saboteur(
        mechanism="lambda_layer:local2d",
        old="seen = slice(max(0, row - plan.up), min(rows, own.stop + plan.up))",
        new="seen = slice(max(0, row - plan.up), min(rows, own.start + plan.up + 1))",
        mimics="the last row of a tile sees too little",
    ),
    Saboteur(
        mechanism="lambda_layer:global2d",
        old="return x_PQD.view(x_PQD.shape[0] * heads, -1, x_PQD.shape[2]).transpose(0, 1)",
        new="return x_PQD.unflatten(1, (-1, heads)).transpose(1, 2).flatten(0, 1).transpose(0, 1)",
        mimics="heads that share a lambda mixed up with items",
    ),
    Saboteur(
        mechanism="lambda_layer:global",
        old="part += skewed.as_strided((tile, *part.shape), (strides[0] - strides[2], *strides[1:])).sum(0)",
        new="part += skewed.sum(0)[:, : part.shape[1]]",
        mimics="a gradient of relative positions taken for one of absolute ones",
    ),
]
