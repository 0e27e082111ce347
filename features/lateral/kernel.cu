// The lateral fits on a GPU: one warp fits one event, by the steps of fit.py.
//
// fit.py puts the recipe and the record RawFit in front of this text. p: core x, core y, level and age of the electrons;
// q: level and age of the muons. Terms of a fit of n numbers: the value, the gradient (n), the lower triangle of Fisher's
// matrix (n (n + 1) / 2), and of electrons that of the Hessian.

const int N_TERMS = 25;
const int ROOM_M = N_M ? N_M : 1;  // C++ has no arrays of nothing

// What the lanes of one event share.
struct Scratch {
    float signal[N_E], floor[N_E], projected[N_E], kept[N_E], background[N_E], weight[N_E];
    float m_signal[ROOM_M], m_floor[ROOM_M], m_area[ROOM_M], m_background[ROOM_M], m_weight[ROOM_M], m_g[ROOM_M],
        m_base[ROOM_M];
    float mean_age;
};

struct Stations {
    const float *x, *y, *area;       // all cells, e/gamma
    const int *where_m;              // cells of the muon detectors
    const float *x_m, *y_m, *area_m;
};

struct Axis { float u, v; };

ON_DEVICE float distance(float x, float y, const float *p, Axis axis) { return distance(x - p[0], y - p[1], axis.u, axis.v); }

ON_DEVICE void freeze_electron(Scratch &z, Stations st, Axis axis, const float *p, const float *q, int lane) {
    EACH(k, N_E) {
        float r = distance(st.x[k], st.y[k], p, axis);
        const auto [kept, background, weight] =
            electron_frozen(z.projected[k], r, electron_density(r, p[2], p[3]), muon_density(r, q[0], q[1]));
        z.kept[k] = kept;
        z.background[k] = background;
        z.weight[k] = weight;
    }
    SYNCHRONISE;
}

ON_DEVICE void freeze_muon(Scratch &z, Stations st, Axis axis, const float *p, const float *q, int lane) {
    EACH(k, N_M) {
        float r = distance(st.x_m[k], st.y_m[k], p, axis);
        const auto [g, base] = muon_logs(r * r, r, 0.f, 0.f);
        const auto [background, weight] =
            muon_frozen(z.m_area[k], r, electron_density(r, p[2], p[3]), muon_density(r, q[0], q[1]));
        z.m_g[k] = g;
        z.m_base[k] = base;
        z.m_background[k] = background;
        z.m_weight[k] = weight;
    }
    SYNCHRONISE;
}

// Terms by (core x, core y, level, age).
struct Electrons {
    static const int size = 4;
    static const bool curved = true;
    static ON_DEVICE float step_limit(int i) { return i < 2 ? recipe::max_core_step_m : i == 2 ? recipe::max_level_step : recipe::max_age_step; }
    static ON_DEVICE float low(int i) { return i < 2 ? -recipe::core_limit_m : i == 2 ? recipe::min_level : recipe::min_age; }
    static ON_DEVICE float high(int i) { return i < 2 ? recipe::core_limit_m : i == 2 ? recipe::max_level : recipe::max_age; }
    static ON_DEVICE void terms(const Scratch &z, Stations st, Axis axis, const float *p, float *out, int lane) {
        for (int i = 0; i < N_TERMS; i++) out[i] = 0.f;
        EACH(k, N_E) {
            float dx = st.x[k] - p[0], dy = st.y[k] - p[1];
            const auto [m, by_x, by_y, g] = electron_signal(dx, dy, axis.u, axis.v, z.kept[k], p[2], p[3]);
            const auto [half, residual, info] = signal_terms(z.signal[k], z.floor[k], m, z.background[k], z.weight[k]);
            const auto [c_xx, c_xy, c_yy, c_xs, c_ys] = electron_curvature(dx, dy, axis.u, axis.v, p[3], residual);
            float d[4] = {by_x, by_y, 1.f, g};
            out[0] += half;
            for (int i = 0, t = 5; i < 4; i++) {
                out[1 + i] -= residual * d[i];
                for (int j = 0; j <= i; j++, t++) out[t] += info * d[i] * d[j];
            }
            out[15] -= c_xx;
            out[16] -= c_xy;
            out[17] -= c_yy;
            out[21] -= c_xs;
            out[22] -= c_ys;
        }
        for (int i = 0; i < N_TERMS; i++) out[i] = total(out[i]);
        const auto [prior, by_age, core, precision] = electron_prior(p[0], p[1], p[2], p[3]);
        out[0] += prior;
        out[1] += core * p[0];
        out[2] += core * p[1];
        out[3] -= 0.5f;
        out[4] += by_age;
        out[5] += core;
        out[7] += core;
        out[14] += precision;
        for (int t = 5; t < 15; t++) out[t + 10] += out[t];
    }
};

// The same by (level, age), where the Hessian is Fisher's matrix. Both fits have half an event as prior of the level.
struct Muons {
    static const int size = 2;
    static const bool curved = false;
    static ON_DEVICE float step_limit(int i) { return i == 0 ? recipe::max_level_step : recipe::max_age_step; }
    static ON_DEVICE float low(int i) { return i == 0 ? recipe::min_level : recipe::min_muon_age; }
    static ON_DEVICE float high(int i) { return i == 0 ? recipe::max_level : recipe::max_muon_age; }
    static ON_DEVICE void terms(const Scratch &z, Stations, Axis, const float *q, float *out, int lane) {
        for (int i = 0; i < N_TERMS; i++) out[i] = 0.f;
        EACH(k, N_M) {
            const float m = muon_signal(z.m_area[k], z.m_g[k], z.m_base[k], q[0], q[1]);
            const auto [half, residual, info] =
                signal_terms(z.m_signal[k], z.m_floor[k], m, z.m_background[k], z.m_weight[k]);
            out[0] += half;
            out[1] -= residual;
            out[2] -= residual * z.m_g[k];
            out[3] += info;
            out[4] += info * z.m_g[k];
            out[5] += info * z.m_g[k] * z.m_g[k];
        }
        for (int i = 0; i < 6; i++) out[i] = total(out[i]);
        const auto [prior, by_age, precision] = muon_prior(q[0], q[1], z.mean_age);
        out[0] += prior;
        out[1] -= 0.5f;
        out[2] += by_age;
        out[5] += precision;
    }
};

// Factorise H + damping diag I by Cholesky; returns whether no pivot is below a share of Fisher's diagonal I.
template <int size> ON_DEVICE bool factorise(const float *fisher, const float *h, float damping, float least, float (*factor)[size]) {
    bool fine = true;
    for (int i = 0; i < size; i++) {
        float unit = fisher[i * (i + 3) / 2];
        for (int j = 0; j <= i; j++) {
            float rest = h[i * (i + 1) / 2 + j] + (i == j ? damping * unit : 0.f);
            for (int k = 0; k < j; k++) rest -= factor[i][k] * factor[j][k];
            if (i == j) fine = fine && rest >= least * unit;
            factor[i][j] = i == j ? sqrtf(fmaxf(rest, unit * 1e-6f + 1e-30f)) : rest / factor[j][j];
        }
    }
    return fine;
}

// The damped step by the Hessian where one by Fisher's matrix was poor, else by Fisher's matrix; returns the decrement -g step.
template <class Fit> ON_DEVICE float solve(const float *terms, float damping, float *step) {
    const int size = Fit::size;
    float factor[size][size];
    const float *fisher = terms + 1 + size;
    bool curved = Fit::curved && damping > recipe::first_damping;
    if (!(curved && factorise<size>(fisher, terms + 15, damping, recipe::least_pivot, factor)))
        factorise<size>(fisher, fisher, damping, 0.f, factor);
    for (int i = 0; i < size; i++) {
        float rest = -terms[1 + i];
        for (int k = 0; k < i; k++) rest -= factor[i][k] * step[k];
        step[i] = rest / factor[i][i];
    }
    for (int i = size - 1; i >= 0; i--) {
        float rest = step[i];
        for (int k = i + 1; k < size; k++) rest -= factor[k][i] * step[k];
        step[i] = rest / factor[i][i];
    }
    float decrement = 0.f;
    for (int i = 0; i < size; i++) decrement -= terms[1 + i] * step[i];
    return decrement;
}

// Levenberg-Marquardt; p and terms end at the minimum. Returns whether the event converged.
template <class Fit>
ON_DEVICE bool minimise(const Scratch &z, Stations st, Axis axis, float tolerance, float *p, float *terms, float *steps, int lane) {
    const int size = Fit::size;
    float damping = recipe::first_damping, tried[N_TERMS], step[size], trial[size];
    Fit::terms(z, st, axis, p, terms, lane);
    for (int n = 0; n < (int)recipe::max_steps; n++) {
        float decrement = solve<Fit>(terms, damping, step);
        if (decrement * (1.f + damping) < tolerance && damping <= recipe::trusted_damping) return true;
        if (damping >= recipe::max_damping) return false;
        for (int i = 0; i < size; i++) {
            float moved = p[i] + fminf(fmaxf(step[i], -Fit::step_limit(i)), Fit::step_limit(i));
            trial[i] = fminf(fmaxf(moved, Fit::low(i)), Fit::high(i));
        }
        Fit::terms(z, st, axis, trial, tried, lane);
        *steps += 1.f;
        float slack = recipe::rounding * fabsf(terms[0]), fallen = terms[0] - tried[0] + slack;
        float ratio = fallen / (0.5f * decrement + slack);
        if (fallen >= 0.f) {
            for (int i = 0; i < N_TERMS; i++) terms[i] = tried[i];
            for (int i = 0; i < size; i++) p[i] = trial[i];
        }
        if (ratio > recipe::good_ratio) damping = fmaxf(damping * recipe::ease, recipe::min_damping);
        else if (ratio < recipe::poor_ratio) damping *= recipe::stiffen;
    }
    return false;
}

// Core at the centroid of density^1.5, muon level from counts beyond 40 m, best of three ages.
ON_DEVICE void start(Scratch &z, Stations st, Axis axis, float cosine, float *p, float *q, int lane) {
    float weights = 0.f, sum_x = 0.f, sum_y = 0.f, signal = 0.f, limits = 0.f;
    EACH(k, N_E) {
        float density = z.projected[k] > 0.f ? z.signal[k] / z.projected[k] : 0.f;
        float weight = density * sqrtf(density) + 1e-20f;
        weights += weight;
        sum_x += weight * st.x[k];
        sum_y += weight * st.y[k];
        (z.floor[k] < 0.f ? signal : limits) += z.signal[k];
    }
    weights = total(weights);
    p[0] = total(sum_x) / weights;
    p[1] = total(sum_y) / weights;
    signal = total(signal);
    // What a saturated station counts.
    const float of_limit = signal > 0.f ? recipe::start_limit : 1.f;
    signal += of_limit * total(limits) + 0.5f;
    float counted = 0.f, expected = 0.f;
    EACH(k, N_M) {
        float r = distance(st.x_m[k], st.y_m[k], p, axis);
        if (r <= recipe::muon_start_r_m) continue;
        counted += z.m_signal[k];
        expected += muon_density(r, 0.f, response::muon_age_mean) * z.m_area[k];
    }
    expected = total(expected);
    if (N_M && expected <= 0.f) {  // no detector stands so far away
        counted = 0.f;
        EACH(k, N_M) {
            float r = distance(st.x_m[k], st.y_m[k], p, axis);
            counted += z.m_signal[k];
            expected += muon_density(r, 0.f, response::muon_age_mean) * z.m_area[k];
        }
        expected = total(expected);
    }
    q[0] = N_M ? logf((total(counted) + 0.5f) / (expected + 1e-6f)) : recipe::min_level;
    q[1] = N_M ? muon_age_mean(q[0], cosine) : response::muon_age_mean;
    z.mean_age = q[1];
    SYNCHRONISE;
    float best = INFINITY;
    for (int n = 0; n < 3; n++) {
        const float age = recipe::first_start_age + n * recipe::start_age_step;
        float at_level_0 = 0.f, value = 0.f;
        EACH(k, N_E) {
            float r = distance(st.x[k], st.y[k], p, axis);
            float counts = z.floor[k] < 0.f ? 1.f : of_limit;
            at_level_0 += counts * z.projected[k] * energy_correction(r) * electron_density(r, 0.f, age);
        }
        float level = logf(signal / (total(at_level_0) + 1e-20f));
        EACH(k, N_E) {
            if (z.projected[k] <= 0.f) continue;
            float r = distance(st.x[k], st.y[k], p, axis), a = energy_correction(r);
            float mu = z.projected[k] * (a * electron_density(r, level, age) + muon_density(r, q[0], q[1]))
                       + response::electron_strays;
            value += half_deviance(z.signal[k], mu, z.floor[k], 1.f / (response::electron_dispersion * a)).value;
        }
        value = total(value);
        if (value < best) {
            best = value;
            p[2] = level;
            p[3] = age;
        }
    }
}

ON_DEVICE void load(Scratch &z, Stations st, const float *electron_mev, const float *muon_mev, float cosine, int lane, float *hits) {
    EACH(k, N_E) {
        z.signal[k] = fminf(electron_mev[k], response::saturation_mev) * cosine / response::electron_deposit_mev;
        z.floor[k] = electron_mev[k] >= response::saturation_mev ? 0.f : -INFINITY;
        z.projected[k] = st.area[k] * cosine;
        *hits += electron_mev[k] > 0.f ? 1.f : 0.f;
    }
    EACH(k, N_M) {
        float deposit_mev = muon_mev[st.where_m[k]];
        z.m_signal[k] = fminf(deposit_mev, response::muon_saturation_mev) * cosine / response::muon_deposit_mev;
        z.m_floor[k] = deposit_mev >= response::muon_saturation_mev ? 0.f : -INFINITY;
        z.m_area[k] = st.area_m[k] * cosine;
    }
    *hits = total(*hits);
    SYNCHRONISE;
}

// Fill the record of one event.
ON_DEVICE void fit_one(Scratch &z, Stations st, const float *electron_mev, const float *muon_mev, float cosine, Axis axis, RawFit *raw, int lane) {
    float hits = 0.f;
    load(z, st, electron_mev, muon_mev, cosine, lane, &hits);
    if (hits < recipe::min_hits) {
        EACH(k, (int)(sizeof(RawFit) / sizeof(float))) ((float *)raw)[k] = NAN;
        return;
    }
    float p[4], q[2], terms[N_TERMS], muon_terms[N_TERMS] = {0.f, 0.f, 0.f, 1.f, 0.f, 1.f}, steps = 0.f, muon_steps = 0.f;
    bool converged = false, muon_converged = !N_M;
    start(z, st, axis, cosine, p, q, lane);
    for (int pass = 0; pass < 2; pass++) {
        float tolerance = pass ? recipe::fine : recipe::coarse;
        freeze_electron(z, st, axis, p, q, lane);
        converged = minimise<Electrons>(z, st, axis, tolerance, p, terms, &steps, lane);
        if (!N_M) continue;
        freeze_muon(z, st, axis, p, q, lane);
        muon_converged = minimise<Muons>(z, st, axis, tolerance, q, muon_terms, &muon_steps, lane);
    }
    if (lane) return;
    for (int i = 0; i < 4; i++) raw->electron[i] = p[i];
    for (int i = 0; i < 10; i++) raw->electron_fisher[i] = terms[5 + i];
    raw->electron_value = terms[0];
    raw->electron_steps = steps;
    raw->electron_converged = converged;
    for (int i = 0; i < 2; i++) raw->muon[i] = q[i];
    for (int i = 0; i < 3; i++) raw->muon_fisher[i] = muon_terms[3 + i];
    raw->muon_value = muon_terms[0];
    raw->muon_steps = muon_steps;
    raw->muon_converged = muon_converged;
}

FOR_EVENTS(fit_events, (
    const float *electron_mev, const float *muon_mev, const float *cosine, const float *u, const float *v,
    const float *x, const float *y, const float *area, const int *where_m, const float *x_m, const float *y_m,
    const float *area_m, int n_events, RawFit *raw), Scratch,
    fit_one(z, Stations{x, y, area, where_m, x_m, y_m, area_m}, electron_mev + (long long)event * N_E,
            muon_mev + (long long)event * N_E, cosine[event], Axis{u[event], v[event]}, raw + event, lane))
