"""Law 3: padding is as if it were not there."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="softmax",
        old="sees = None if keep_BM is None else keep_BM[:, None, None, :]",
        new="sees = None",
        mimics="the mask dropped silently (transformers #45811)",
    ),
    Saboteur(
        mechanism="softmax",
        old="sees = None if keep_BM is None else keep_BM[:, None, None, :]",
        new="sees = None if keep_BM is None or keep_BM.shape[0] == 1 else keep_BM[:, None, None, :]",
        mimics="padding in a batch of one never masked (transformers #46773)",
    ),
    Saboteur(
        mechanism="softmax",
        old="weight_BHNM = score_BHNM.masked_fill(~sees, finfo(q.dtype).min).softmax(-1) * sees",
        new="weight_BHNM = score_BHNM.masked_fill(~sees, -float('inf')).softmax(-1)",
        mimics="NaN on a fully padded row",
    ),
    Saboteur(
        mechanism="softmax",
        old="k_BGMD, v_BGME = k_BGMD.masked_fill(padded, 0), v_BGME.masked_fill(padded, 0)",
        new="k_BGMD, v_BGME = k_BGMD * ~padded, v_BGME * ~padded",
        mimics="padding removed by a product: 0 times NaN is NaN",
        file="contract.py",
    ),
    Saboteur(
        mechanism="linear",
        old="return x_BNC.masked_fill(~keep[:, :, None], 0)",
        new="return x_BNC",
        mimics="NaN at padded tokens reaches the gradients of the projections",
        file="contract.py",
    ),
    Saboteur(
        mechanism="linear",
        old="out.masked_fill_(~keep, -torch.inf if logarithm else 0)",
        new="pass",
        mimics="padded keys counted in the denominator",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="local",
        old="order=True,",
        new="order=False,",
        mimics="a card that claims more: that padding anywhere is the same as removing it",
    ),
    Saboteur(
        mechanism="linformer",
        old="return self.read(q, self.shorten(k, v))",
        new="return self.read(q, self.shorten(k_BHMD, v_BHME))",
        mimics="E applied to padded rows",
    ),
    Saboteur(
        mechanism="linformer",
        old="return self.E[..., :keys], F[..., :keys]",
        new="return self.E[..., -keys:], F[..., -keys:]",
        mimics="the last columns of E for a short input",
    ),
    Saboteur(
        mechanism="lambda_layer:global",
        old="k = k.masked_fill(~keep[:, :, None, None], finfo(k.dtype).min)",
        new="k = k.masked_fill(~keep[:, :, None, None], 0)",
        mimics="a softmax over padded keys",
    ),
    Saboteur(
        mechanism="lambda_layer:local",
        old="v = v if keep is None else v.masked_fill(~keep[:, :, None], 0)",
        new="v = v",
        mimics="the batch norm's bias makes values of padding",
    ),
]
