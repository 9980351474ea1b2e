"""Law 2: the future changes nothing."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="softmax",
        old="ordered = self.causal and queries > 1  # a single query is the last position and sees everything",
        new="ordered = False",
        mimics="causal=True ignored (xformers #103, its Linformer)",
    ),
    Saboteur(
        mechanism="softmax",
        old="if ordered and (queries < keys or keep_BM is not None):",
        new="if ordered and keep_BM is not None:",
        mimics="queries taken for the first positions, as the fused flag has it (transformers #45513)",
    ),
    Saboteur(
        mechanism="softmax",
        old="sees = seen(queries, keys, causal=True, device=q.device, keep_BM=keep_BM)",
        new="sees = sees if queries == keys else seen(queries, keys, causal=True, device=q.device, keep_BM=keep_BM)",
        mimics="a padding mask replaces the causal one",
    ),
    Saboteur(
        mechanism="local",
        old="return Band.apply(q, k, v, keep_BM, self.window, self.causal)",
        new="return Band.apply(q, k - k.detach().mean(2, keepdim=True), v, keep_BM, self.window, self.causal)",
        mimics="a stabiliser over all keys, which softmax cancels up to 1e-15",
    ),
    Saboteur(
        mechanism="local",
        old="for step in steps(q, k, keep, ctx.window, ctx.causal):",
        new="for step in steps(q, k, keep, ctx.window, False):",
        mimics="only the backward pass sees the future",
    ),
    Saboteur(
        mechanism="local",
        old="seen_NM = ahead_NM >= 0 if causal else torch.ones_like(ahead_NM, dtype=torch.bool)",
        new="seen_NM = ahead_NM >= -1 if causal else torch.ones_like(ahead_NM, dtype=torch.bool)",
        mimics="the mask is off by one: each token sees the next",
        file="parts/masks.py",
    ),
    Saboteur(
        mechanism="linear",
        old="return self.out(y_BHNE.transpose(1, 2).flatten(2))",
        new="return self.out(y_BHNE.reshape(y_BHNE.shape[0], y_BHNE.shape[2], -1))",
        mimics="heads merged by a reshape without the transposition: positions are shuffled",
        file="contract.py",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="self.project(x, out)",
        new="self.project(x, out).sub_(0 if query else out.max())",
        mimics="performer-pytorch's maximum over all keys: the future shows in the last bits",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="higher = torch.maximum(s, u[0, :, :, 0])",
        new="higher = torch.maximum(s, u.amax((0, 3)))",
        mimics="a shift that knows the future of its chunk",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="lambda_layer:global",
        old="c_BJRUK = seen_BJRUK.flatten(1, 2).cummax(1).values.view_as(k_BJRUK)",
        new="c_BJRUK = seen_BJRUK.amax((1, 2), keepdim=True).expand_as(k_BJRUK)",
        mimics="a stabiliser from the future, which leaks 3e-7",
    ),
    Saboteur(
        mechanism="lambda_layer:local",
        old="self.right = 0 if causal else self.left",
        new="self.right = self.left",
        mimics="a centred neighbourhood in a causal layer",
    ),
    Saboteur(
        mechanism="linformer",
        old='causal="no",',
        new='causal="option",',
        mimics="a card that claims more: causal",
    ),
]
