"""Law 5: the items of a batch are strangers."""

from saboteurs import Saboteur

SABOTEURS = [
    Saboteur(
        mechanism="local",
        old="return Band.apply(q, k, v, keep_BM, self.window, self.causal)",
        new="return Band.apply(q, k, v / v.detach().std(), keep_BM, self.window, self.causal) * v.detach().std()",
        mimics="items mixed by a scale taken over the whole batch, which cancels up to rounding",
    ),
    Saboteur(
        mechanism="local",
        old="for step in steps(q, k, keep, window, causal):",
        new="for step in steps(q, k, keep if keep is None else keep[:1].expand_as(keep), window, causal):",
        mimics="the first item's mask used for all",
    ),
    Saboteur(
        mechanism="linformer:none",
        old="return torch.bmm(E, x_HMC).unflatten(2, (batch, -1)).permute(2, 0, 1, 3)",
        new="return torch.bmm(E, x_HMC).unflatten(2, (-1, batch)).permute(3, 0, 1, 2)",
        mimics="items side by side taken apart in the wrong order",
    ),
    Saboteur(
        mechanism="linear",
        old="for item in range(0, shape[0], items):",
        new="for item in range(0, max(1, shape[0] // items) * items, items):",
        mimics="a large batch's last group of items is never computed",
        file="parts/sums.py",
    ),
    Saboteur(
        mechanism="linformer",
        old="x_BMC = x_BHMD.transpose(1, 2).flatten(2)",
        new="x_BMC = x_BHMD.transpose(1, 2).flatten(2).flip(0)",
        mimics="items of the batch swapped",
    ),
    Saboteur(
        mechanism="lambda_layer:local2d",
        old="return norm(rows).view(x_BNC.shape)",
        new="return nn.functional.batch_norm(rows, None, None, norm.weight, norm.bias, True).view(x_BNC.shape)",
        mimics="batch statistics in eval",
    ),
]
