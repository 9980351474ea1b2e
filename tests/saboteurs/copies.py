"""Law 10: a module is its weights, and a forward changes nothing."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="local",
        old="return Band.apply(q, k, v, keep_BM, self.window, self.causal)",
        new="self.last = k; return Band.apply(q, k, v, keep_BM, self.window, self.causal)",
        mimics="forward leaves state behind in the module",
    ),
    Saboteur(
        mechanism="local",
        old="self.window, self.horizon = window, window - 1",
        new="self.window, self.horizon, self.far = window, window - 1, lambda distance: distance >= window",
        mimics="an attribute that cannot be pickled",
    ),
    Saboteur(
        mechanism="linformer",
        old='check_same("k", k_BHMD, "E", self.E)',
        new="self.E.data.div_(self.E.data.norm())",
        mimics="forward writes to its weights",
    ),
    Saboteur(
        mechanism="linformer",
        old="self.E = nn.Parameter(torch.empty(shape))",
        new='self.register_buffer("E", torch.randn(shape), persistent=False)',
        mimics="random numbers that the state_dict does not hold",
    ),
    Saboteur(
        mechanism="softmax",
        old="return scaled_dot_product_attention(q, k, v, attn_mask=sees, is_causal=ordered and sees is None)",
        new="return scaled_dot_product_attention(q, k, v, sees, 0.1, ordered and sees is None)",
        mimics="dropout left on in eval",
    ),
    Saboteur(
        mechanism="softmax",
        old="sees = None if keep_BM is None else keep_BM[:, None, None, :]",
        new="sees = None if v.isnan().all().item() or keep_BM is None else keep_BM[:, None, None, :]",
        mimics="a card that claims more: compiled without a break",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="(W_PD,) = precise(W_PD)",
        new="(W_PD,) = precise(self.drawn().to(W_PD))",
        mimics="features redrawn by every forward",
    ),
]
