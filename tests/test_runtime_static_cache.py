import pytest

torch = pytest.importorskip("torch")

from capturelint.runtime.static_cache import LayerGeometry, StaticCache, WatchingCache  # noqa: E402

LAYER = LayerGeometry(num_heads=2, key_size=3, value_size=3, dtype=torch.float32)


def cache(*layers, max_length=6):
    return StaticCache(layers or (LAYER, LAYER), batch=2, max_length=max_length, device="cpu")


def token(number):
    return torch.full((2, 2, 1, 3), float(number))


def feed(kept, numbers):
    """Write one position a number into every layer; gives the last layer's keys."""
    for number in numbers:
        for layer in range(len(kept.keys)):
            keys, _ = kept.update(token(number), token(-number), layer)
    return keys


def test_positions_are_written_in_order():
    keys = feed(cache(), (1, 2, 3))
    assert keys[0, 0, :, 0].tolist() == [1, 2, 3, 0, 0, 0]


def test_a_prefix_is_written_at_once():
    kept = cache(LAYER)
    keys, _ = kept.update(torch.cat([token(1), token(2)], dim=2), torch.cat([token(1), token(2)], dim=2), 0)
    assert keys[0, 0, :, 0].tolist() == [1, 2, 0, 0, 0, 0]
    assert kept.get_seq_length().tolist() == [2]


def test_the_cursor_moves_once_a_step_and_stays_where_it_is_in_memory():
    kept = cache()
    address = kept.cursor.data_ptr()
    feed(kept, (1, 2))
    assert kept.get_seq_length().tolist() == [2]
    assert kept.cursor.data_ptr() == address


def test_a_step_changes_no_python_number():
    kept = cache()
    before = {name: value for name, value in vars(kept).items() if isinstance(value, (int, float))}
    feed(kept, (1,))
    assert {name: value for name, value in vars(kept).items() if isinstance(value, (int, float))} == before


def test_a_sliding_layer_keeps_the_last_positions():
    kept = cache(LayerGeometry(2, 3, 3, torch.float32, window=3))
    keys = feed(kept, (1, 2, 3, 4))
    assert sorted(keys[0, 0, :, 0].tolist()) == [2, 3, 4]
    assert kept.get_max_cache_shape(0) == 3


def test_masks_open_up_to_the_position():
    kept = cache(LayerGeometry(2, 3, 3, torch.float32, window=3))
    assert kept.mask(torch.tensor([1])).flatten().tolist() == [True, True, False, False, False, False]
    assert kept.window_mask(torch.tensor([5]), 0).flatten().tolist() == [True, True, True]


def test_reset_forgets_in_place():
    kept = cache()
    feed(kept, (1, 2))
    address = kept.keys[0].data_ptr()
    kept.reset()
    assert (kept.keys[0].abs().sum().item(), kept.cursor.item(), kept.keys[0].data_ptr()) == (0, 0, address)


def test_the_geometry_of_every_layer_is_observed():
    watching = WatchingCache()
    watching.update(torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 6), 1)
    watching.update(torch.zeros(2, 2, 1, 8), torch.zeros(2, 2, 1, 8), 0)
    assert [(layer.num_heads, layer.key_size, layer.value_size) for layer in watching.layers] == [(2, 8, 8), (4, 8, 6)]
