// A warp of 32 lanes as coroutines on a CPU, in an order that can be chosen; stands for warp.cu.
//
// A lane runs until it needs the others: at a shuffle or a barrier. Between two of them lanes run one after the other,
// so that what a lane reads before another one should have written it differs from order to order. Shared memory is
// filled with NaN before each event.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>

#define LANES 32
#define ON_DEVICE inline
using std::fmaxf;
using std::fminf;

namespace warp {

enum Stop { AT_BARRIER = 1, AT_SHUFFLE = 2 };
enum Order { FORWARD = 0, BACKWARD = 1, RANDOM = 2 };

static ucontext_t scheduler, contexts[LANES];
static std::function<void(int)> body;
static bool ended[LANES];
static Stop stop[LANES];
static long stops[LANES];           // how often each lane has stopped in this event
static float given[2][LANES];       // what lanes hand to a shuffle; two, since some may be at the next one already
static bool joined[2];              // whether it is what they get back
static int lane_now, order = FORWARD;
static uint64_t state = 88172645463325252ull;
static long barriers, shuffles, faults;

inline uint64_t drawn() {           // xorshift64, G. Marsaglia, J. Stat. Softw. 8 (2003) 14
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

inline void wait(Stop why) {
    const int me = lane_now;
    stop[me] = why;
    stops[me]++;
    swapcontext(&contexts[me], &scheduler);
}

static void enter(int lane) {
    body(lane);
    ended[lane] = true;
    swapcontext(&contexts[lane], &scheduler);
}

inline void run(std::function<void(int)> of_event) {
    const size_t size = 1 << 18;
    static char *stacks = static_cast<char *>(malloc(LANES * size));
    body = of_event;
    int turn[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        getcontext(&contexts[lane]);
        contexts[lane].uc_stack.ss_sp = stacks + lane * size;
        contexts[lane].uc_stack.ss_size = size;
        contexts[lane].uc_link = nullptr;
        makecontext(&contexts[lane], reinterpret_cast<void (*)()>(enter), 1, lane);
        ended[lane] = false;
        stops[lane] = 0;
        turn[lane] = order == BACKWARD ? LANES - 1 - lane : lane;
    }
    for (;;) {
        if (order >= RANDOM)
            for (int k = LANES - 1; k > 0; k--) std::swap(turn[k], turn[drawn() % (k + 1)]);
        for (int lane : turn) {
            lane_now = lane;
            swapcontext(&scheduler, &contexts[lane]);
        }
        const int n_ended = static_cast<int>(std::count(ended, ended + LANES, true));
        if (n_ended == LANES) return;
        bool together = n_ended == 0;
        for (int lane = 1; lane < LANES; lane++)
            together = together && stop[lane] == stop[0] && stops[lane] == stops[0];
        if (!together) {            // lanes that part would wait for each other for ever: the event is left
            faults++;
            return;
        }
        (stop[0] == AT_BARRIER ? barriers : shuffles)++;
    }
}

// All lanes' values through an xor butterfly, as the shuffles of warp.cu; whoever runs first does it for all.
template <typename Join> inline float butterfly(float x, Join join) {
    const int me = lane_now, side = stops[me] & 1;
    float *values = given[side];
    values[me] = x;
    joined[side] = false;
    wait(AT_SHUFFLE);
    if (!joined[side]) {
        float next[LANES];
        for (int offset = LANES / 2; offset; offset >>= 1) {
            for (int lane = 0; lane < LANES; lane++) next[lane] = join(values[lane], values[lane ^ offset]);
            memcpy(values, next, sizeof next);
        }
        for (int lane = 1; lane < LANES; lane++)
            if (memcmp(&values[lane], &values[0], sizeof(float)) && !std::isnan(values[lane])) faults++;
        joined[side] = true;
    }
    return values[me];
}

}  // namespace warp

#define SYNCHRONISE warp::wait(warp::AT_BARRIER)
ON_DEVICE float total(float x) {
    return warp::butterfly(x, [](float a, float b) { return a + b; });
}
ON_DEVICE float largest(float x) {
    return warp::butterfly(x, [](float a, float b) { return fmaxf(a, b); });
}

#define EACH(k, n) for (int k = lane; k < n; k += LANES)
#define FOR_EVENTS(name, arguments, Kept, call) \
    extern "C" void name arguments { \
        static Kept z; \
        for (int event = 0; event < n_events; event++) { \
            memset(static_cast<void *>(&z), 0xff, sizeof z); \
            warp::run([&](int lane) { call; }); \
        } \
    }

extern "C" void begin(int order) {
    warp::order = order;
    warp::barriers = warp::shuffles = warp::faults = 0;
}
extern "C" long barriers() { return warp::barriers; }
extern "C" long shuffles() { return warp::shuffles; }
extern "C" long faults() { return warp::faults; }
