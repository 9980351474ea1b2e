"""Law 6: the exact limits are softmax."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="local",
        old="self.window, self.horizon = window, window - 1",
        new="self.window, self.horizon = min(window, 64), min(window, 64) - 1",
        mimics="a window that is cut to what the fast form likes",
    ),
    Saboteur(
        mechanism="local",
        old="torch.baddbmm(step.bias, q_GRD, k_GSD.mT, alpha=q_GRD.shape[-1] ** -0.5, out=p_GRS)",
        new="torch.baddbmm(step.bias, q_GRD, k_GSD.mT, alpha=1, out=p_GRS)",
        mimics="scores not divided by the root of head_dim",
    ),
    Saboteur(
        mechanism="linformer",
        old="return scaled_dot_product_attention(q_BHND, held.k_BHKD, held.v_BHKE)",
        new="return scaled_dot_product_attention(q_BHND, held.k_BHKD, held.v_BHKE, scale=self.rank**-0.5)",
        mimics="scores divided by the root of the wrong dimension",
    ),
    Saboteur(
        mechanism="linear",
        old="block=64,",
        new="block=64, limits=({},),",
        mimics="a card that claims more: a kernel that is softmax",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="blocks.append(Q * R.diagonal().sign())  # or half of the directions would never come up",
        new="blocks.append(Q)",
        mimics="QR without the signs of R's diagonal, as in performer-pytorch: half of the directions missing",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="return h / m**0.5 * u.exp()",
        new="return h * u.exp()",
        mimics="1/sqrt(m) forgotten: the fraction hides it, the estimate does not",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="gaussian = torch.randn(count, dim, generator=generator)",
        new="gaussian = torch.randn(1, dim, generator=generator).expand(count, dim)",
        mimics="all rows of one length: more features stop helping",
    ),
    Saboteur(
        mechanism="linformer",
        old="projection.copy_(torch.eye(core.rank, core.max_length))",
        new="projection.copy_(torch.eye(core.rank, core.max_length) / core.rank)",
        mimics="an identity of the wrong size",
    ),
    Saboteur(
        mechanism="performer:hyperbolic",
        old="self.kind, self.features, self.orthogonal = kind, features, orthogonal",
        new="self.kind, self.features, self.orthogonal = kind, features, False",
        mimics="orthogonal features that are drawn independently all the same",
    ),
]
