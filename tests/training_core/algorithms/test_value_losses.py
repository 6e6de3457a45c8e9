"""Value losses on numbers worked out by hand."""

import torch

from training_core.algorithms.value_losses import clipped_value_loss, squared_value_loss


def test_value_loss_inside_the_clip_is_half_the_squared_error():
    loss = clipped_value_loss(
        torch.tensor([[1.1]]), torch.tensor([[1.0]]), torch.tensor([[2.0]]), clip=0.2
    )
    torch.testing.assert_close(loss, torch.tensor([[0.405]]))  # (1.1 - 2)^2 / 2


def test_value_loss_takes_the_worse_of_plain_and_clipped():
    values = torch.tensor([[1.5, 0.5]], requires_grad=True)
    loss = clipped_value_loss(
        values, torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0]]), clip=0.2
    )
    # towards the return: plain (1.5-2)^2/2 = 0.125, clipped (1.2-2)^2/2 = 0.32 -> 0.32, no gradient
    # away from it:       plain (0.5-2)^2/2 = 1.125, clipped (0.8-2)^2/2 = 0.72 -> 1.125
    torch.testing.assert_close(loss, torch.tensor([[0.32, 1.125]]))
    torch.testing.assert_close(
        torch.autograd.grad(loss.sum(), values)[0], torch.tensor([[0.0, -1.5]])
    )


def test_the_squared_loss_pulls_as_hard_however_far_the_value_moved():
    values = torch.tensor([[1.0, 3.0]], requires_grad=True)
    loss = squared_value_loss(values, torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(loss, torch.tensor([[0.5, 4.5]]))  # 1^2 / 2, 3^2 / 2
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    torch.testing.assert_close(gradient, torch.tensor([[-1.0, 3.0]]))
