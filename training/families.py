"""The families of synthetic series: each makes `rows` unrelated series of `steps` steps, float32 (rows, steps)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from training.draws import Array, Draw, unit


def trend(draw: Draw, rows: int, steps: int) -> Array:
    """Slow movement of deviation about 1: a line, bent lines, growth, saturation, or a smooth wandering level."""
    time = np.arange(steps, dtype=np.float32)[None] / np.float32(steps)
    kind = draw.rng.choice(5, (rows, 1), p=[0.25, 0.25, 0.15, 0.1, 0.25])
    line = time * np.ones((rows, 1), np.float32)
    bent = line.copy()
    for _ in range(4):
        bent += draw.uniform(-3, 3, rows) * np.maximum(time - draw.uniform(0, 1, rows), 0) * draw.chance(0.7, rows)
    growth = np.exp(draw.uniform(-5, 5, rows) * (time - 0.5))
    middle, steepness = draw.uniform(-0.1, 1.1, rows), draw.log_uniform(3, 40, rows)
    saturating = 1 / (1 + np.exp(np.clip(-steepness * (time - middle), -30, 30)))
    smooth = draw.power_noise(rows, steps, draw.uniform(2.0, 4.0, rows))
    made = np.select([kind == 0, kind == 1, kind == 2, kind == 3], [line, bent, growth, saturating], smooth)
    return unit(made.astype(np.float32)) * draw.pick([-1, 1], rows, [0.4, 0.6])


def structural(draw: Draw, rows: int, steps: int) -> Array:
    """Level, trend, one to three seasons and noise, added or multiplied (the classical decomposition)."""
    first = draw.periods(rows, steps)
    whole = draw.chance(0.55, rows) * (first <= 64)
    first = np.where(whole > 0, np.round(first), first)
    slotted = draw.chance(0.35, rows) * whole
    season = np.where(slotted > 0, draw.slots(np.clip(np.round(first), 2, 64), steps), draw.season(first, steps))
    if draw.rng.random() < 0.5:
        season = season * np.exp(
            0.4 * draw.chance(0.5, rows) * draw.power_noise(rows, steps, draw.uniform(1.8, 3, rows))
        )
    second = first * draw.pick([7, 4, 12, 2, 5, 3.37, 0.21], rows, [6, 2, 2, 1, 1, 1, 2])
    season += draw.chance(0.4, rows) * draw.log_uniform(0.15, 1.5, rows) * draw.season(np.maximum(second, 3), steps)
    slow = trend(draw, rows, steps) * draw.log_uniform(0.05, 12, rows) * draw.chance(0.8, rows)
    noise = _errors(draw, rows, steps) * draw.log_uniform(0.01, 1.2, rows)
    added = season + slow + noise
    # Multiplied: the swing and the noise follow the level, as in sales, passengers, loads.
    strength = draw.log_uniform(0.05, 0.5, rows)
    level = unit(slow) * draw.log_uniform(0.1, 1.0, rows)
    product = np.exp(np.clip(level + strength * (season + noise), -12, 12))
    return np.where(draw.chance(0.35, rows) > 0, product, added)


def _errors(draw: Draw, rows: int, steps: int) -> Array:
    """Noise of deviation about 1: white, heavy-tailed, or an autoregression of order one."""
    noise = draw.heavy(rows, steps)
    memory = np.where(draw.chance(0.4, rows) > 0, draw.uniform(0.2, 0.97, rows), 0)[:, 0]
    for row in np.nonzero(memory)[0]:
        keep = float(memory[row])
        top, bottom = np.array([[(1 - keep * keep) ** 0.5]]), np.array([[1, -keep]])
        noise[row : row + 1] = draw.filtered(noise[row : row + 1], top, bottom)
    return noise


def clean_season(draw: Draw, rows: int, steps: int) -> Array:
    """One to three cycles with little or no noise, half the time upon a line or a growth."""
    # Pure sines, most of them of no calendar's period: the simplest series must come out best.
    sine = draw.chance(0.4, rows) > 0
    free = sine & (draw.chance(0.6, rows) > 0)
    first = np.where(free, draw.log_uniform(6, min(steps / 3, 300), rows), draw.periods(rows, steps))
    phase = np.arange(steps, dtype=np.float32)[None] / first + draw.uniform(0, 1, rows)
    total = np.where(sine, np.sin(phase * np.float32(2 * np.pi)) * np.float32(1.414), draw.season(first, steps))
    for probability in (0.4, 0.2):
        other = draw.season(draw.periods(rows, steps), steps)
        total += draw.chance(probability, rows) * draw.log_uniform(0.1, 1, rows) * other
    slow = trend(draw, rows, steps) * draw.log_uniform(0.1, 15, rows) * draw.chance(0.5, rows)
    noise = draw.normal(rows, steps) * draw.log_uniform(0.001, 0.2, rows) * draw.chance(0.65, rows)
    return total + slow + noise


def calendar(draw: Draw, rows: int, steps: int) -> Array:
    """Load curves: a day's shape, another for the weekend, levels of weekdays, holidays, weather, an annual swing."""
    lengths = np.array([8, 12, 24, 48, 96, 144])
    fits = lengths * 7 <= max(steps * 0.7, 60)
    day = draw.pick(lengths[fits], rows, np.array([1, 1, 6, 7, 3, 1])[fits])
    time = np.arange(steps, dtype=np.float32)[None] + np.floor(draw.uniform(0, 7, rows) * day)
    number = np.floor(time / day).astype(np.int64)
    weekday = number % 7
    days = int(number.max()) + 1
    holiday = np.take_along_axis(draw.rng.random((rows, days)) < 0.02, number, axis=1)
    off_days = draw.pick([1, 2, 2, 3, 0], rows)
    off = (weekday >= 7 - off_days) | holiday
    shape = draw.rng.integers(0, len(draw.bank), (rows, 1))
    other = np.where(draw.chance(0.5, rows) > 0, shape, draw.rng.integers(0, len(draw.bank), (rows, 1)))
    phase = time / day + draw.uniform(0, 1, rows)
    swing = np.where(off, draw.uniform(0.1, 1.1, rows), 1)
    curve = draw.bank.look_up(np.where(off, other, shape), phase) * swing
    common = draw.bank.look_up(shape, phase)
    curve += draw.uniform(0, 1.5, rows) * common
    levels = draw.normal(rows, 7) * draw.log_uniform(0.02, 0.5, rows)
    drop = draw.uniform(-0.3, 1.8, rows) * off
    curve += np.take_along_axis(levels, weekday, axis=1) - drop
    # Weather: days that are higher or lower as a whole, with memory from day to day.
    weather = draw.power_noise(rows, days + 2, draw.uniform(0.5, 2.2, rows)) * draw.log_uniform(0.03, 0.6, rows)
    part = (time / day - number).astype(np.float32)
    curve += np.take_along_axis(weather, number, 1) * (1 - part) + np.take_along_axis(weather, number + 1, 1) * part
    curve += trend(draw, rows, steps) * draw.log_uniform(0.05, 1.5, rows) * draw.chance(0.6, rows)
    noise = _errors(draw, rows, steps) * draw.log_uniform(0.005, 0.5, rows)
    plain = curve + noise
    return np.where(draw.chance(0.4, rows) > 0, np.exp(np.clip(0.4 * plain, -8, 8)), plain)


def smoothing(draw: Draw, rows: int, steps: int) -> Array:
    """Exponential smoothing in its error form: level, damped trend and season all moved by the same innovations."""
    error = draw.heavy(rows, steps)
    alpha = np.where(draw.chance(0.3, rows) > 0, draw.uniform(0.3, 1, rows), draw.log_uniform(0.01, 0.6, rows))
    level = np.cumsum(alpha * error, axis=1)
    rising = draw.chance(0.5, rows)[:, 0] > 0
    if rising.any():
        beta = draw.log_uniform(0.0005, 0.05, rows)[rising]
        damping = draw.pick([1.0, 0.99, 0.97, 0.9], rows)[rising, 0].astype(float)
        ones = np.ones((len(damping), 1))
        start = np.zeros((len(damping), steps), np.float32)
        start[:, 0] = draw.uniform(-0.3, 0.3, rows)[rising, 0] * (draw.log_uniform(0.01, 1, rows)[rising, 0])
        slope = draw.filtered(beta * error[rising] + start, ones, np.concatenate([ones, -damping[:, None]], 1))
        level[rising] += np.cumsum(slope, axis=1)
    period = int(draw.pick([4, 7, 12, 24, 24, 12, 48, 52, 6], 1)[0, 0])
    cycles = -(-steps // period)
    moves = np.pad(error, ((0, 0), (0, cycles * period - steps))).reshape(rows, cycles, period)
    drift = np.cumsum(moves * draw.log_uniform(0.003, 0.4, rows)[..., None], axis=1).reshape(rows, -1)[:, :steps]
    base = np.where(draw.chance(0.5, rows) > 0, draw.slots(np.full((rows, 1), period), steps),
                    draw.season(np.full((rows, 1), period, np.float32), steps))  # fmt: skip
    season = (drift + base * draw.log_uniform(0.3, 8, rows)) * draw.chance(0.7, rows)
    total = level + season + error
    growth = np.exp(np.clip(unit(total) * draw.log_uniform(0.1, 1, rows), -12, 12))
    return np.where(draw.chance(0.3, rows) > 0, growth, total)


def stochastic(draw: Draw, rows: int, steps: int) -> Array:
    """Random walks, autoregressions, their sums, coloured noise, changing volatility."""
    kinds = np.sort(draw.rng.choice(6, rows, p=[0.2, 0.22, 0.18, 0.12, 0.2, 0.08]))
    parts = [make(draw, int((kinds == kind).sum()), steps) for kind, make in enumerate(_STOCHASTIC)]
    return np.concatenate(parts)


def _walks(draw: Draw, rows: int, steps: int) -> Array:
    drift = draw.uniform(-0.4, 0.4, rows) * draw.chance(0.4, rows) * draw.log_uniform(0.05, 1, rows)
    walk = np.cumsum(draw.heavy(rows, steps) + drift, axis=1)
    walk += draw.normal(rows, steps) * draw.log_uniform(0.05, 5, rows) * draw.chance(0.3, rows)
    return np.where(draw.chance(0.2, rows) > 0, np.exp(np.clip(unit(walk) * 0.7, -6, 6)), walk)


def _autoregressions(draw: Draw, rows: int, steps: int) -> Array:
    pole = 1 - draw.log_uniform(0.003, 0.7, rows)
    second = draw.uniform(-0.8, 0.95, rows) * draw.chance(0.4, rows)
    ones = np.ones((rows, 1), np.float32)
    top = np.concatenate([ones, draw.uniform(-0.7, 0.7, rows) * draw.chance(0.3, rows)], 1)
    return draw.filtered(draw.heavy(rows, steps), top, np.concatenate([ones, -pole - second, pole * second], 1))


def _oscillators(draw: Draw, rows: int, steps: int) -> Array:
    radius = 1 - draw.log_uniform(0.0008, 0.25, rows)
    angle = 2 * np.pi / draw.log_uniform(4, 150, rows)
    ones = np.ones((rows, 1), np.float32)
    bottom = np.concatenate([ones, -2 * radius * np.cos(angle), radius * radius], 1)
    swing = unit(draw.filtered(draw.normal(rows, steps), ones, bottom))
    return swing + draw.normal(rows, steps) * draw.log_uniform(0.02, 0.5, rows) * draw.chance(0.5, rows)


def _integrated(draw: Draw, rows: int, steps: int) -> Array:
    once = np.cumsum(_autoregressions(draw, rows, steps), axis=1)
    twice = np.cumsum(unit(once), axis=1)
    return np.where(draw.chance(0.2, rows) > 0, twice, once)


def _coloured(draw: Draw, rows: int, steps: int) -> Array:
    noise = draw.power_noise(rows, steps, draw.uniform(-0.2, 2.8, rows))
    return noise + draw.normal(rows, steps) * draw.log_uniform(0.02, 1, rows) * draw.chance(0.4, rows)


def _volatile(draw: Draw, rows: int, steps: int) -> Array:
    loudness = np.exp(draw.uniform(0.3, 1.2, rows) * draw.power_noise(rows, steps, draw.uniform(0.8, 2.2, rows)))
    returns = draw.normal(rows, steps) * loudness
    return np.where(draw.chance(0.6, rows) > 0, np.cumsum(returns, axis=1), returns)


_STOCHASTIC: tuple[Callable[[Draw, int, int], Array], ...] = (
    _walks, _autoregressions, _oscillators, _integrated, _coloured, _volatile,
)  # fmt: skip


def kernels(draw: Draw, rows: int, steps: int) -> Array:
    """Gaussian processes of composed kernels, sums and products, with or without noise."""
    made = draw.process(rows, steps)
    made *= np.where(draw.chance(0.2, rows) > 0, 1 + 0.7 * draw.power_noise(rows, steps, draw.uniform(2, 3, rows)), 1)
    made += trend(draw, rows, steps) * draw.log_uniform(0.1, 5, rows) * draw.chance(0.25, rows)
    made += draw.normal(rows, steps) * draw.log_uniform(0.01, 0.5, rows) * draw.chance(0.5, rows)
    return np.where(draw.chance(0.1, rows) > 0, np.exp(np.clip(made, -6, 6)), made)


def quasi_cycles(draw: Draw, rows: int, steps: int) -> Array:
    """Cycles whose length and height change from one to the next: sunspots, prey and predators, business cycles."""
    period = draw.log_uniform(7, max(min(steps / 3, 250), 20), rows)
    rate = np.exp(draw.uniform(0.02, 0.3, rows) * draw.power_noise(rows, steps, draw.uniform(1.2, 2.6, rows))) / period
    phase = np.cumsum(rate, axis=1, dtype=np.float32) + draw.uniform(0, 1, rows)
    wave = draw.bank.look_up(draw.rng.integers(0, len(draw.bank), (rows, 1)), phase)
    cycle = np.floor(phase).astype(np.int64)
    heights = np.exp(draw.uniform(0.05, 0.6, rows) * draw.normal(rows, int(cycle.max()) + 2))
    part = (phase - cycle).astype(np.float32)
    height = np.take_along_axis(heights, cycle, 1) * (1 - part) + np.take_along_axis(heights, cycle + 1, 1) * part
    sharp = np.exp(draw.uniform(0.3, 1.4, rows) * wave)
    wave = np.where(draw.chance(0.6, rows) > 0, sharp, wave) * height
    noise = draw.normal(rows, steps) * draw.log_uniform(0.01, 0.6, rows)
    follows = draw.chance(0.5, rows)
    wave += noise * np.where(follows > 0, np.sqrt(np.abs(wave) + 0.05), 1)
    return wave + trend(draw, rows, steps) * draw.log_uniform(0.1, 2, rows) * draw.chance(0.3, rows)


def _jumps(draw: Draw, rows: int, steps: int, lengths: Array) -> Array:
    """Levels that hold for stretches of about `lengths` (rows, 1) steps, standard normal each."""
    segment = np.cumsum(draw.rng.random((rows, steps), dtype=np.float32) < 1 / lengths, axis=1, dtype=np.int64)
    return np.take_along_axis(draw.normal(rows, int(segment.max()) + 1), segment, axis=1)


def regimes(draw: Draw, rows: int, steps: int) -> Array:
    """Shifts of level, bursts of variance, spikes at random or regular places, switching between two behaviours."""
    shift = _jumps(draw, rows, steps, draw.log_uniform(12, steps, rows)) * draw.log_uniform(0.3, 5, rows)
    base = draw.season(draw.periods(rows, steps), steps) * draw.chance(0.5, rows) + _errors(draw, rows, steps) * (
        draw.log_uniform(0.02, 1, rows)
        * np.exp(0.8 * draw.chance(0.4, rows) * _jumps(draw, rows, steps, draw.log_uniform(20, steps, rows)))
    )
    spiky = draw.rng.random((rows, steps), dtype=np.float32) < 1 / draw.log_uniform(20, 600, rows)
    period = np.round(draw.periods(rows, steps))
    regular = (np.arange(steps)[None] + np.floor(draw.uniform(0, 1, rows) * period)) % period < draw.pick(
        [1, 1, 2, 3], rows
    )
    struck = np.where(draw.chance(0.4, rows) > 0, regular, spiky).astype(np.float32)
    struck *= 1 + 0.3 * draw.normal(rows, steps) * draw.chance(0.7, rows)
    ones = np.ones((rows, 1), np.float32)
    fading = np.concatenate([ones, -draw.uniform(0, 0.95, rows) * draw.chance(0.5, rows)], 1)
    spikes = (
        draw.filtered(struck, ones, fading) * draw.log_uniform(1, 12, rows) * draw.pick([-1, 1], rows, [0.25, 0.75])
    )
    state = _jumps(draw, rows, steps, draw.log_uniform(20, steps / 2, rows)) > 0
    switched = np.where(state, base, unit(stochastic(draw, rows, steps)))
    switches = draw.chance(0.2, rows)
    return (
        np.where(switches > 0, switched, base) + shift * draw.chance(0.6, rows) + spikes * draw.chance(0.5, rows)
    ).astype(np.float32)


def counts(draw: Draw, rows: int, steps: int) -> Array:
    """Counts: Poisson and overdispersed, seasonal or drifting in rate, intermittent in some."""
    swing = draw.season(draw.periods(rows, steps), steps) * draw.uniform(0, 1, rows) * draw.chance(0.7, rows)
    swing += draw.power_noise(rows, steps, draw.uniform(1.5, 3, rows)) * draw.uniform(0, 0.8, rows)
    rate = draw.log_uniform(0.08, 60, rows) * np.exp(np.clip(swing, -4, 3))
    spread = np.where(draw.chance(0.4, rows) > 0, draw.log_uniform(0.5, 20, rows), 1e4)
    mixed = rate * draw.rng.standard_gamma(np.broadcast_to(spread, rate.shape)) / spread
    made = draw.rng.poisson(np.minimum(mixed, 1e5)).astype(np.float32)
    open_days = draw.rng.random((rows, steps), dtype=np.float32) < draw.uniform(0.1, 0.9, rows)
    return np.where((draw.chance(0.35, rows) > 0) & ~open_days, np.float32(0), made)


def plain(draw: Draw, rows: int, steps: int) -> Array:
    """The simplest series: constants, lines, growth, a line with a sine, one change of level, with little noise."""
    time = np.arange(steps, dtype=np.float32)[None] / np.float32(steps)
    kind = draw.rng.integers(0, 7, (rows, 1))
    line = time * draw.pick([-1, 1], rows)
    growth = np.exp(draw.uniform(-8, 8, rows) * time - np.float32(4))
    curve = np.square(time - draw.uniform(-0.5, 1.2, rows)) * draw.pick([-1, 1], rows)
    cycle = np.sin((time * steps / draw.periods(rows, steps) + draw.uniform(0, 1, rows)) * np.float32(2 * np.pi))
    waved = line + cycle * draw.log_uniform(0.01, 1, rows)
    stepped = (time > draw.uniform(0, 1, rows)).astype(np.float32)
    noise = draw.normal(rows, steps) * draw.log_uniform(0.0005, 0.3, rows) * draw.chance(0.4, rows)
    options = [np.zeros_like(waved), line + 0 * waved, growth, curve, waved, waved, stepped]
    return np.choose(kind, options).astype(np.float32) + noise * (kind > 0)


def responses(draw: Draw, rows: int, steps: int) -> Array:
    """Steps, impulses and ramps through slow filters: temperatures, tanks, doses, with regular or random inputs."""
    held = _jumps(draw, rows, steps, draw.log_uniform(8, 200, rows))
    period = draw.periods(rows, steps)
    jitter = draw.power_noise(rows, steps, draw.uniform(1.6, 2.4, rows)) * draw.uniform(0, 0.2, rows)
    cycled = draw.bank.look_up(
        draw.rng.integers(0, len(draw.bank), (rows, 1)), np.arange(steps, dtype=np.float32)[None] / period + jitter + 8
    )
    impulses = (draw.rng.random((rows, steps), dtype=np.float32) < 1 / draw.log_uniform(10, 120, rows)) * np.abs(
        draw.normal(rows, steps)
    )
    kind = draw.rng.integers(0, 3, (rows, 1))
    drive = np.choose(kind, [held, cycled, impulses * 6]).astype(np.float32)
    radius = 1 - draw.log_uniform(0.005, 0.5, rows)
    angle = 2 * np.pi / draw.log_uniform(8, 200, rows) * draw.chance(0.4, rows)
    ones = np.ones((rows, 1), np.float32)
    bottom = np.concatenate([ones, -2 * radius * np.cos(angle), radius * radius], 1)
    made = unit(draw.filtered(drive, ones, bottom))
    return made + draw.normal(rows, steps) * draw.log_uniform(0.003, 0.3, rows) * draw.chance(0.8, rows)


Family = Callable[[Draw, int, int], Array]

# Shares of rows, in per cent.
MIX: dict[Family, float] = {
    structural: 17, calendar: 18, clean_season: 12, smoothing: 11, stochastic: 13, kernels: 9, regimes: 6,
    quasi_cycles: 5, counts: 3, plain: 4, responses: 2,
}  # fmt: skip
