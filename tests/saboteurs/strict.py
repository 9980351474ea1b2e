"""Law 9: nothing is ignored, and the card says neither more nor less than the truth."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="local",
        old="def __init__(self, *, heads: int, head_dim: int, causal: bool = False, window: int = 128) -> None:",
        new="def __init__(self, *, heads: int, head_dim: int, causal: bool = False, window: int = 128, **_: Any):",
        mimics="a misspelt option swallowed by **kwargs (xformers' config matcher)",
    ),
    Saboteur(
        mechanism="local",
        old="require_positive(window=window)",
        new="window = max(1, window)",
        mimics="an impossible option mended in silence",
    ),
    Saboteur(
        mechanism="linformer",
        old='if causal and self.card.causal == "no":',
        new="if False:",
        mimics="causal=True accepted by what cannot be causal (xformers' Linformer)",
        file="contract.py",
    ),
    Saboteur(
        mechanism="linformer",
        old="if keys > self.max_length:",
        new="if False:",
        mimics="too many tokens end in a message about shapes from inside",
    ),
    Saboteur(
        mechanism="softmax",
        old='causal="option",',
        new='causal="no",',
        mimics="a card that claims less: the class is causal all the same",
    ),
    Saboteur(
        mechanism="softmax",
        old="compiles=True,",
        new="compiles=True, order=True,",
        mimics="a card that claims less: positions do not matter, and it says that they do",
    ),
    Saboteur(
        mechanism="softmax",
        old="if k.shape[0] != q.shape[0]:",
        new="if k.shape[0] not in (1, q.shape[0]):",
        mimics="a context of one item silently shared by a batch",
        file="contract.py",
    ),
    Saboteur(
        mechanism="softmax",
        old="self.heads, self.head_dim, self.causal = heads, head_dim, causal",
        new="self.heads, self.head_dim, self.causal = heads, head_dim, True",
        mimics="causal=False ignored",
        file="contract.py",
    ),
    Saboteur(
        mechanism="lambda_layer:local2d",
        old="self.require_cross()",
        new="pass",
        mimics="a context without meaning is taken",
    ),
    Saboteur(
        mechanism="lambda_layer:global",
        old="if self.max_length is not None and max(queries, keys) > self.max_length:",
        new="if self.max_length is None:",
        mimics="too many tokens fail somewhere inside",
    ),
]
