"""Law 8: short floats and large logits."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="linear",
        old="return [t.to(precision(t)) for t in tensors]",
        new="return [t.bfloat16().to(precision(t)) for t in tensors]",
        mimics="rounded to a short format before the sums",
        file="parts/precision.py",
    ),
    Saboteur(
        mechanism="local",
        old="torch.softmax(p_GRS, -1, out=p_GRS)",
        new="p_GRS.div_(p_GRS.exp_().sum(-1, keepdim=True))",
        mimics="exponentials without a maximum taken off: exp(100) is no float32",
    ),
    Saboteur(
        mechanism="linformer",
        old="return scaled_dot_product_attention(q_BHND, held.k_BHKD, held.v_BHKE)",
        new="return scaled_dot_product_attention(*(t.bfloat16() for t in (q_BHND, *held))).to(q_BHND.dtype)",
        mimics="computed in a short format whatever was given",
    ),
    Saboteur(
        mechanism="performer:positive",
        old="u.sub_(s.unsqueeze(2))",
        new="pass",
        mimics="exponentials without a shift",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="linformer",
        old="return scaled_dot_product_attention(q_BHND, held.k_BHKD, held.v_BHKE)",
        new="return (q_BHND @ held.k_BHKD.mT / self.head_dim**0.5).exp() @ held.v_BHKE",
        mimics="softmax without its maximum or its sum",
    ),
    Saboteur(
        mechanism="lambda_layer:global",
        old="return y_BNHV.flatten(2).to(x_BNC.dtype)",
        new="return y_BNHV.flatten(2)",
        mimics="bfloat16 in, float32 out",
    ),
]
