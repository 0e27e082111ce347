"""The benchmark's draws of mixtures in one compiled loop over random numbers."""

from __future__ import annotations

import numpy as np

from showerstack.runtime.kernels import kernel

WORD, MASK, ONE = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(1)


@kernel(nogil=True, error_model="numpy")
def tally(
    words: np.ndarray,
    places: np.ndarray,
    bits: int,
    sizes: np.ndarray,
    counts: np.ndarray,
    state: np.ndarray,
    drawn: np.ndarray,
) -> None:
    """Draw events of each class with replacement, and count what they are predicted as, until the words are used up.

    A word w gives the event w n / 2^32 of n, as :meth:`numpy.random.Generator.integers` does it; where the remainder
    is among the 2^32 mod n smallest, the word is passed over (D. Lemire, ACM Trans. Model. Comput. Simul. 29 (2019) 3).

    Parameters
    ----------
    words
        (W,) uint32, random.
    places
        (N,) uint8 predicted classes times ``bits``, those of one true class after another.
    bits
        Counts of the predicted classes are added up in one number of 64 bits, in so many of them each.
    sizes
        (C,) int64 numbers of events of the true classes.
    counts
        (G, C) int64 events of each class in each mixture.
    state
        (4,) int64: where to go on, a mixture, a class and how many events of it are drawn already; and how many are
        drawn by a word in all.
    drawn
        (G, C) int64: predicted classes, added up.
    """
    used, by_word, full = 0, 0, (1 << bits) - 1
    for mixture in range(state[0], len(counts)):
        first = 0
        for k in range(len(sizes)):
            size, done = sizes[k], 0
            if mixture == state[0]:
                done = counts[mixture, k] if k < state[1] else state[2] if k == state[1] else 0
            if size == 1:  # nothing is drawn
                drawn[mixture, np.int64(places[first]) // bits] += counts[mixture, k] - done
            else:
                n = np.uint64(size)
                least = (ONE << WORD) % n
                while done < counts[mixture, k]:
                    if used == len(words):
                        state[0], state[1], state[2], state[3] = mixture, k, done, state[3] + by_word
                        return
                    together = min(counts[mixture, k] - done, len(words) - used, full)
                    sums, taken = np.uint64(0), 0
                    for word in words[used : used + together]:
                        product = np.uint64(word) * n
                        if (product & MASK) >= least:
                            sums += ONE << np.uint64(places[first + np.int64(product >> WORD)])
                            taken += 1
                    for one in range(len(sizes)):
                        drawn[mixture, one] += np.int64((sums >> np.uint64(bits * one)) & np.uint64(full))
                    used, done, by_word = used + together, done + taken, by_word + taken
            first += size
    state[0], state[1], state[2], state[3] = len(counts), 0, 0, state[3] + by_word
