// Sums over stations and over the grid on a GPU, one warp an event: those of compiled.py and grid.py.
//
// cuda.py puts the records of the sums (Plain, Pattern, Ring, LcmRing, GridSums, BothChannels, SquareRing, Order), limits and
// edges of rings in front of this text. A lane touches no stations but its own, so lanes wait for each other only where
// deposits are sorted.

const int N_RINGS = N_RING_EDGE - 1, N_LCM = N_LCM_EDGE - 1;

struct Site { const float *x, *y, *area_e, *area_m; };
struct Cells { const float *electron_mev, *muon_mev; };
struct Angles { float cosine, u, v, cos_azimuth, sin_azimuth; };
struct Tails { const float *e, *mu; };
struct Results { Plain *plain; Pattern *pattern; Ring *rings; LcmRing *lcm; };

// Signals, expectations and variances of one event.
struct Planes { float r[N_E], s_e[N_E], mean_e[N_E], var_e[N_E], s_m[N_E], mean_m[N_E], var_m[N_E]; };

template <class Sums> ON_DEVICE void add_lanes(Sums &sums) {
    for (int i = 0; i < (int)(sizeof(Sums) / sizeof(float)); i++) ((float *)&sums)[i] = total(((float *)&sums)[i]);
}

ON_DEVICE float deviance(float signal, float mean, float variance, bool limited) {
    const float weight = mean / fmaxf(variance, model::TINY);
    return half_deviance(signal, mean + model::TINY, limited ? 0.f : -INFINITY, weight).value;
}

// Fill the planes and the sums with one value an event; `reco`: reconstructed N_mu over that of the density at level 0.
ON_DEVICE void plain_sums(Planes &z, Site st, Cells cells, Angles at, const RawFit &fit, float reco, Plain *out, int lane) {
    const float per_e = at.cosine / response::electron_deposit_mev, per_m = at.cosine / response::muon_deposit_mev;
    Plain s = {};
    float worst = -INFINITY, far_max = 0.f;
    EACH(k, N_E) {
        const bool limited_e = cells.electron_mev[k] >= response::saturation_mev;
        const bool limited_m = cells.muon_mev[k] >= response::muon_saturation_mev;
        const float s_e = fminf(cells.electron_mev[k], response::saturation_mev) * per_e;
        const float s_m = fminf(cells.muon_mev[k], response::muon_saturation_mev) * per_m;
        const float area_e = st.area_e[k] * at.cosine, area_m = st.area_m[k] * at.cosine;
        const float live_e = area_e > 0.f ? 1.f : 0.f, live_m = area_m > 0.f ? 1.f : 0.f;
        const float q = squared_distance(st.x[k] - fit.electron[0], st.y[k] - fit.electron[1], at.u, at.v);
        const float r = sqrtf(q);
        const float electrons = exp2f(electron_logs(q, r, fit.electron[2], fit.electron[3]).exponent);
        const float muons = exp2f(muon_logs(q, r, fit.muon[0], fit.muon[1]).exponent);
        const float typical = exp2f(muon_logs(q, r, 0.f, response::muon_age_mean).exponent) * area_m;
        const auto [all_e, spread_e, share] = electron_expected(area_e, r, electrons, muons);
        const float mean_e = all_e * live_e, var_e = spread_e * live_e;
        const auto [mean_m, var_m, punch] = muon_expected(area_m, r, electrons, muons);
        const float far = r > zone::FAR_M ? 1.f : 0.f, outer = r > zone::OUTER_M ? 1.f : 0.f;
        const float mid = (r > zone::MUON_AGE_FROM_M ? 1.f : 0.f) - outer;
        const float close = (1.f - far) * live_m, counted = far * live_m, hit = s_m > 0.f ? 1.f : 0.f;
        z.r[k] = r;
        z.s_e[k] = s_e; z.mean_e[k] = mean_e; z.var_e[k] = var_e;
        z.s_m[k] = s_m; z.mean_m[k] = mean_m; z.var_m[k] = var_m;
        s.deviance_e += deviance(s_e, mean_e, var_e, limited_e);
        const float half = deviance(s_m, mean_m, var_m + punch_uncertainty(punch), limited_m);
        s.deviance_mu += half;
        worst = fmaxf(worst, half);
        s.muon_age_hits += hit * (mid + outer);
        s.far_seen += s_m * far;
        far_max = fmaxf(far_max, s_m * far);
        s.far_hits += hit * far;
        s.far_live += counted;
        s.far_area += area_m * far;
        s.far_seen_e += s_e * far;
        const float by_fit = empty(area_m * muons) * counted, by_reco = empty(reco * typical) * counted;
        s.fit_empty += by_fit;
        s.fit_empty_var += by_fit * (1.f - by_fit);
        s.reco_expected += reco * typical * far;
        s.reco_empty += by_reco;
        s.reco_empty_var += by_reco * (1.f - by_reco);
        s.near_seen += s_m * close;
        s.near_expected += mean_m * close;
        s.near_hits += hit * close;
        const auto [beyond, variance] = over_punch(area_m, s_m, punch);
        const float weight = typical / (variance + model::TINY);
        s.unexplained += fmaxf(beyond - 2.f * sqrtf(variance), 0.f);
        s.signal += weight * beyond;
        s.signal_var += weight * weight * variance;
        s.mid_seen_mu += s_m * mid; s.mid_area_mu += area_m * mid; s.mid_seen_e += s_e * mid; s.mid_area_e += area_e * mid;
        s.outer_seen_mu += s_m * outer; s.outer_area_mu += area_m * outer;
        s.outer_seen_e += s_e * outer; s.outer_area_e += area_e * outer;
    }
    add_lanes(s);
    s.deviance_mu_max = largest(worst);
    s.far_max = largest(far_max);
    if (lane == 0) *out = s;
}

// Fill the sums of one channel over rings.
ON_DEVICE void ring_sums(const Planes &z, const float *signal, const float *mean, const float *variance, const float *area_m2, float cosine, Ring *out, int lane) {
    for (int ring = 0; ring < N_RINGS; ring++) {
        const float low = ring_edge(ring), high = ring_edge(ring + 1);
        float seen = 0.f, area = 0.f, expected = 0.f, spread = 0.f;
        EACH(k, N_E) {
            if (z.r[k] < low || z.r[k] >= high) continue;
            seen += signal[k];
            area += area_m2[k] * cosine;
            expected += mean[k];
            spread += variance[k];
        }
        seen = total(seen), area = total(area), expected = total(expected), spread = total(spread);
        if (lane) continue;
        out->seen[ring] = seen;
        out->area[ring] = area;
        out->expected[ring] = expected;
        out->variance[ring] = spread;
    }
}

// Fill the sums of one channel's densities over rings of LCm.
ON_DEVICE void lcm_sums(const Planes &z, const float *signal, const float *mean, const float *variance, const float *area_m2, float cosine, LcmRing *out, int lane) {
    for (int ring = 0; ring < N_LCM; ring++) {
        const float low = lcm_edge(ring), high = lcm_edge(ring + 1);
        float stations = 0.f, seen = 0.f, seen_2 = 0.f, expected = 0.f, expected_2 = 0.f, spread = 0.f;
        EACH(k, N_E) {
            if (area_m2[k] <= 0.f || z.r[k] < low || z.r[k] >= high) continue;
            const float per_m2 = 1.f / fmaxf(area_m2[k] * cosine, 1e-6f);
            const float density = signal[k] * per_m2, expectation = mean[k] * per_m2;
            stations += 1.f;
            seen += density;
            seen_2 += density * density;
            expected += expectation;
            expected_2 += expectation * expectation;
            spread += variance[k] * per_m2 * per_m2;
        }
        stations = total(stations), seen = total(seen), seen_2 = total(seen_2);
        expected = total(expected), expected_2 = total(expected_2), spread = total(spread);
        if (lane) continue;
        out->stations[ring] = stations;
        out->seen[ring] = seen;
        out->seen_2[ring] = seen_2;
        out->expected[ring] = expected;
        out->expected_2[ring] = expected_2;
        out->variance[ring] = spread;
    }
}

// The square root of -lg P(S >= seen), as tail.py looks it up.
ON_DEVICE float root_lg_tail(float signal, float mean, float variance, float dispersion, const float *table) {
    const float per_deposit = dispersion * mean / (variance + model::TINY);
    const float deposits = fminf(fmaxf(per_deposit * mean, tail::MIN_MEAN), tail::MAX_MEAN);
    const float row = fmaxf(log2f(deposits * (1.f / tail::MIN_MEAN)) * (model::LN_2 / tail::MEAN_STEP), 0.f);
    const float from_low = (sqrtf(per_deposit * signal) - sqrtf(deposits) - tail::LOW) * (1.f / tail::STEP);
    const float column = fminf(fmaxf(from_low, 0.f), tail::N_STEPS - 1.001f);
    const float i = floorf(row), j = floorf(column), a = row - i, b = column - j;
    const float *here = table + (int)i * (int)tail::N_STEPS + (int)j, *next = here + (int)tail::N_STEPS;
    const float near = here[0] + b * (here[1] - here[0]);
    return near + a * (next[0] + b * (next[1] - next[0]) - near);
}

// How improbable and how uneven the signals of one channel are.
ON_DEVICE void pattern_sums(const Planes &z, const float *signal, const float *mean, const float *variance, const float *area_m2, Site st, Angles at,
                            const RawFit &fit, float dispersion, const float *table, Pattern *out, int lane) {
    Pattern s = {};
    EACH(k, N_E) {
        if (area_m2[k] <= 0.f) continue;
        s.live += 1.f;
        if (z.r[k] > zone::FAR_M) {
            s.far_live += 1.f;
            if (signal[k] > 0.f) {
                const float root = root_lg_tail(signal[k], mean[k], variance[k], dispersion, table), square = root * root;
                s.tail_05 += root;
                s.tail_1 += square;
                s.tail_2 += square * square;
            }
        }
        const float free = (signal[k] - mean[k]) / sqrtf(variance[k] + 1e-6f);
        const float deviate = fminf(fmaxf(free, -zone::MAX_DEVIATE), zone::MAX_DEVIATE);
        const float dx = st.x[k] - fit.electron[0], dy = st.y[k] - fit.electron[1];
        const float per_length = 1.f / sqrtf(fmaxf(dx * dx + dy * dy, 1e-6f));
        const float c = (dx * at.cos_azimuth + dy * at.sin_azimuth) * per_length;
        const float d = (dy * at.cos_azimuth - dx * at.sin_azimuth) * per_length;
        s.dipole_cos += deviate * c;
        s.dipole_sin += deviate * d;
        s.quadrupole_cos += deviate * (c * c - d * d);
        s.quadrupole_sin += deviate * 2.f * c * d;
    }
    add_lanes(s);
    if (lane == 0) *out = s;
}

// Fill all sums of one event; those of an event without a fit are left as they are.
ON_DEVICE void sum_one(Planes &z, Site st, Cells cells, Angles at, const RawFit &fit, float reco, Tails tails, int with_rings, int with_patterns, Results out, int lane) {
    if (!(fit.electron[0] == fit.electron[0])) return;
    plain_sums(z, st, cells, at, fit, reco, out.plain, lane);
    if (with_rings) {
        ring_sums(z, z.s_e, z.mean_e, z.var_e, st.area_e, at.cosine, out.rings, lane);
        ring_sums(z, z.s_m, z.mean_m, z.var_m, st.area_m, at.cosine, out.rings + 1, lane);
    }
    if (with_patterns) {
        pattern_sums(z, z.s_e, z.mean_e, z.var_e, st.area_e, st, at, fit, response::electron_dispersion, tails.e, out.pattern, lane);
        pattern_sums(z, z.s_m, z.mean_m, z.var_m, st.area_m, st, at, fit, response::muon_dispersion, tails.mu, out.pattern + 1, lane);
        lcm_sums(z, z.s_e, z.mean_e, z.var_e, st.area_e, at.cosine, out.lcm, lane);
        lcm_sums(z, z.s_m, z.mean_m, z.var_m, st.area_m, at.cosine, out.lcm + 1, lane);
    }
}

FOR_EVENTS(sum_events, (
    const float *electron_mev, const float *muon_mev, const float *cosine, const float *u, const float *v,
    const float *cos_azimuth, const float *sin_azimuth, const float *reco, const float *x, const float *y,
    const float *area_e, const float *area_m, const float *tail_e, const float *tail_m, const RawFit *fits,
    int with_rings, int with_patterns, int n_events, Plain *plain, Pattern *pattern, Ring *rings, LcmRing *lcm), Planes,
    sum_one(z, Site{x, y, area_e, area_m}, Cells{electron_mev + (long long)event * N_E, muon_mev + (long long)event * N_E},
            Angles{cosine[event], u[event], v[event], cos_azimuth[event], sin_azimuth[event]}, fits[event], reco[event],
            Tails{tail_e, tail_m}, with_rings, with_patterns,
            Results{plain + event, pattern + 2ll * event, rings + 2ll * event, lcm + 2ll * event}, lane))

// ln(1 + deposit) of one channel.
struct Logs { float w[N_E]; };

struct Place { const float *x, *y; const int *ring; };  // in units of 100 m; number of the square ring

// Sums and moments of one channel that need no core, and its deposits and hits per square ring.
ON_DEVICE void grid_sums(Logs &z, Place st, const float *mev, float limit, float cosine, float sine, GridSums *out, SquareRing *rings, int lane) {
    GridSums s = {};
    EACH(k, N_E) {
        const float d = mev[k], w = log1pf(d);
        z.w[k] = w;
        s.total += d;
        s.hits += d > 0.f ? 1.f : 0.f;
        s.saturated += d >= limit ? 1.f : 0.f;
        s.logs += w;
        s.squares += w * w;
        s.mean_x += w * st.x[k];
        s.mean_y += w * st.y[k];
    }
    add_lanes(s);
    const float per_log = s.logs > 0.f ? 1.f / s.logs : 1.f;
    s.mean_x *= per_log;
    s.mean_y *= per_log;
    float xx = 0.f, yy = 0.f, xy = 0.f, along_2 = 0.f, along_3 = 0.f, r_4 = 0.f;
    EACH(k, N_E) {
        const float dx = st.x[k] - s.mean_x, dy = st.y[k] - s.mean_y, w = z.w[k];
        const float along = dx * cosine + dy * sine, r2 = dx * dx + dy * dy;
        xx += w * dx * dx;
        yy += w * dy * dy;
        xy += w * dx * dy;
        along_2 += w * along * along;
        along_3 += w * along * along * along;
        r_4 += w * r2 * r2;
    }
    s.xx = total(xx) * per_log;
    s.yy = total(yy) * per_log;
    s.xy = total(xy) * per_log;
    s.along_2 = total(along_2) * per_log;
    s.along_3 = total(along_3) * per_log;
    s.r_4 = total(r_4) * per_log;
    if (lane == 0) *out = s;
    for (int ring = 0; ring < N_SQUARE_RINGS; ring++) {
        float deposits = 0.f, hits = 0.f;
        EACH(k, N_E) {
            if (st.ring[k] != ring) continue;
            deposits += mev[k];
            hits += mev[k] > 0.f ? 1.f : 0.f;
        }
        deposits = total(deposits), hits = total(hits);
        if (lane) continue;
        rings->deposits[ring] = deposits;
        rings->hits[ring] = hits;
    }
}

ON_DEVICE void shared_sums(Cells cells, const float *no_muon, const float *with_muon, BothChannels *out, int lane) {
    BothChannels s = {};
    EACH(k, N_E) {
        s.inner += cells.electron_mev[k] * no_muon[k];
        s.outer += cells.electron_mev[k] * with_muon[k];
        s.both_hits += cells.electron_mev[k] > 0.f && cells.muon_mev[k] > 0.f ? 1.f : 0.f;
    }
    add_lanes(s);
    if (lane == 0) *out = s;
}

ON_DEVICE void grid_one(Logs &z, Place st, Cells cells, const float *no_muon, const float *with_muon, float cosine, float sine, GridSums *sums, BothChannels *shared, SquareRing *rings, int lane) {
    grid_sums(z, st, cells.electron_mev, response::saturation_mev, cosine, sine, sums, rings, lane);
    grid_sums(z, st, cells.muon_mev, response::muon_saturation_mev, cosine, sine, sums + 1, rings + 1, lane);
    shared_sums(cells, no_muon, with_muon, shared, lane);
}

FOR_EVENTS(sum_grids, (
    const float *electron_mev, const float *muon_mev, const float *cos_azimuth, const float *sin_azimuth, const float *x,
    const float *y, const int *ring, const float *no_muon, const float *with_muon, int n_events, GridSums *sums,
    BothChannels *shared, SquareRing *rings), Logs,
    grid_one(z, Place{x, y, ring}, Cells{electron_mev + (long long)event * N_E, muon_mev + (long long)event * N_E}, no_muon,
             with_muon, cos_azimuth[event], sin_azimuth[event], sums + 2ll * event, shared + event,
             rings + 2ll * event, lane))

// Deposits in ascending order behind places without a cell, which have -1.
struct Ordered { float mev[N_ORDERED]; };

// A bitonic sorting network: K. E. Batcher, AFIPS Spring Joint Computer Conference 32 (1968) 307.
ON_DEVICE void sort(Ordered &z, int lane) {
    for (int size = 2; size <= N_ORDERED; size *= 2)
        for (int stride = size / 2; stride; stride /= 2) {
            EACH(n, N_ORDERED / 2) {
                const int i = 2 * n - (n & (stride - 1)), j = i + stride;
                const float a = z.mev[i], b = z.mev[j];
                if ((a > b) == !(i & size)) {
                    z.mev[i] = b;
                    z.mev[j] = a;
                }
            }
            SYNCHRONISE;
        }
}

// Fill the largest deposit, the sum of the largest ones and quantiles of the hit stations, NaN where nothing was hit.
ON_DEVICE void order_one(Ordered &z, const float *mev, Order *out, int lane) {
    float hits = 0.f;
    EACH(k, N_ORDERED) {
        z.mev[k] = k < N_E ? mev[k] : -1.f;
        hits += z.mev[k] > 0.f ? 1.f : 0.f;
    }
    hits = total(hits);
    SYNCHRONISE;
    sort(z, lane);
    if (lane == 0) {
        float top = 0.f;
        for (int k = N_ORDERED > N_TOP ? N_ORDERED - N_TOP : 0; k < N_ORDERED; k++) top += fmaxf(z.mev[k], 0.f);
        out->max = fmaxf(z.mev[N_ORDERED - 1], 0.f);
        out->top = top;
        for (int k = 0; k < N_QUANTILE; k++) {
            const float place = hits > 0.f ? N_ORDERED - hits + quantile(k) * (hits - 1.f) : 0.f;
            const int below = (int)place, above = below + 1 < N_ORDERED ? below + 1 : below;
            const float value = z.mev[below] + (place - below) * (z.mev[above] - z.mev[below]);
            out->quantiles[k] = hits > 0.f ? value : NAN;
        }
    }
    SYNCHRONISE;
}

FOR_EVENTS(order_cells, (const float *mev, int n_events, Order *out), Ordered,
    order_one(z, mev + (long long)event * N_E, out + event, lane))
