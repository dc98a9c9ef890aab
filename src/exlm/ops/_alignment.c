/* States Alignment on a CPU: forward and reverse sweep of one float32 lattice after another.
 *
 * The algorithm is that of alignment_torch.py (row-normalised logarithms, weights instead of beta, feasibility band),
 * in base 2. log 0 is a large finite negative number, so that inf - inf never occurs. Do not compile this file with
 * -ffast-math: rounding by adding ROUND and the comparison of NaN with itself rely on IEEE arithmetic.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOG_ZERO (-1e30f) /* stands for log 0 */
#define NO_PATH_BELOW (-1e29) /* a log-probability at or below this has a LOG_ZERO in its sum */
#define LOG2E 1.44269504088896341f
#define LN2 0.69314718055994531
#define ROUND 12582912.0f /* 1.5 * 2^23: adding and subtracting it rounds to the nearest integer */

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MULTIVERSION
#endif
#define INLINE static inline __attribute__((always_inline))

/* 2^x for x <= 0, relative error 2e-7; exactly 0 below -125. */
INLINE float exp2_negative(float x) {
    float clamped = x < -125.0f ? -125.0f : x;
    float whole = (clamped + ROUND) - ROUND;
    float f = clamped - whole;
    float p = 1.5353362e-4f;
    p = p * f + 1.3398874e-3f;
    p = p * f + 9.6184373e-3f;
    p = p * f + 5.5503324e-2f;
    p = p * f + 2.4022648e-1f;
    p = p * f + 6.9314720e-1f;
    p = p * f + 1.0f;
    int bits;
    memcpy(&bits, &p, sizeof bits);
    bits += (int)whole << 23;
    memcpy(&p, &bits, sizeof p);
    return x < -125.0f ? 0.0f : p;
}

INLINE float base2(float x) {
    float y = x * LOG2E;
    return y > LOG_ZERO ? y : LOG_ZERO;
}

/* Rows of the scratch arrays are `room` long, a multiple of LANES. Inner loops run over whole groups of LANES, from the
 * group that holds `first` to the one that holds `last`. So no remainder loops are needed, which short bands would
 * mostly run. Outside a row's band, `links` is LOG_ZERO or the weight is 0, so the extra lanes add nothing. */
#define LANES 16
#define GROUPS(v, first, last) for (long v = (first) / LANES * LANES; v < ROOM((last) + 1); v++)
#define ROOM(n) (((n) + LANES - 1) / LANES * LANES)

/* alpha[i] and total[i] of all rows; returns log2 f, or LOG_ZERO. links: [n][room], from u to v, in base 2. */
MULTIVERSION
static double forward(const float *restrict emission, long stride, const float *restrict links, long t, long n,
                      long room, float *restrict alpha, float *restrict total, float *restrict peak) {
    long slack = n - t;
    double shift = base2(emission[0]);
    for (long v = 0; v < t * room; v++) alpha[v] = LOG_ZERO;
    alpha[0] = 0.0f;
    for (long i = 1; i < t; i++) {
        const float *before = alpha + (i - 1) * room;
        float *restrict here = alpha + i * room, *restrict sum = total + i * room;
        long last = i + slack;
        for (long v = 0; v < room; v++) { peak[v] = LOG_ZERO * 4.0f; sum[v] = 0.0f; }
        for (long u = i - 1; u < last; u++) {
            const float a = before[u], *restrict row = links + u * room;
            GROUPS(v, u + 1, last) {
                float x = a + row[v];
                peak[v] = x > peak[v] ? x : peak[v];
            }
        }
        for (long u = i - 1; u < last; u++) {
            const float a = before[u], *restrict row = links + u * room;
            GROUPS(v, u + 1, last) sum[v] += exp2_negative(a + row[v] - peak[v]);
        }
        float best = LOG_ZERO * 8.0f;
        for (long v = i; v <= last; v++) {
            sum[v] = peak[v] + log2f(sum[v]);
            here[v] = sum[v] + base2(emission[i * stride + v]);
            best = here[v] > best ? here[v] : best;
        }
        for (long v = i; v <= last; v++) here[v] -= best;
        shift += best;
    }
    return shift + alpha[(t - 1) * room + n - 1];
}

/* Posteriors: state_posterior [t][stride], and used [n][room], zero on entry; weight [2][room] is scratch. */
MULTIVERSION
static void backward(const float *restrict links, long t, long n, long room, const float *restrict alpha,
                     const float *restrict total, float *restrict state_posterior, long stride, float *restrict used,
                     float *restrict weight) {
    long slack = n - t;
    memset(weight, 0, 2 * (size_t)room * sizeof(float));
    weight[(t - 1) % 2 * room + n - 1] = 1.0f;
    for (long i = t - 1; i > 0; i--) {
        const float *before = alpha + (i - 1) * room, *restrict sum = total + i * room;
        float *restrict gradient = weight + i % 2 * room, *restrict previous = weight + (i - 1) % 2 * room;
        long last = i + slack;
        memcpy(state_posterior + i * stride, gradient, n * sizeof(float));
        memset(previous, 0, room * sizeof(float));
        for (long u = i - 1; u < last; u++) {
            const float a = before[u], *restrict row = links + u * room;
            float *restrict use = used + u * room, flow = 0.0f;
#pragma omp simd reduction(+ : flow)
            GROUPS(v, u + 1, last) {
                float x = a + row[v] - sum[v];
                float part = gradient[v] * exp2_negative(x < 0.0f ? x : 0.0f);
                use[v] += part;
                flow += part;
            }
            previous[u] = flow;
        }
    }
    memcpy(state_posterior, weight, n * sizeof(float));
}

/* One sequence; returns log f, -inf without a path, NaN if an input that a path uses is NaN; inputs that no path of
 * t targets uses are ignored. scratch: 2 n + 2 t + 2 rows. */
static double one_sequence(const float *emission, const float *transition, long t, long n, long rows, long stride,
                           float *state_posterior, float *link_use, float *scratch) {
    if (t < 1 || t > rows || n < t || n > stride || (t == 1 && n != 1)) return -INFINITY;
    long room = ROOM(n), slack = n - t;
    float *links = scratch, *alpha = links + n * room, *total = alpha + t * room, *spare = total + t * room;
    float check = 0.0f;
    for (long u = 0; u < n; u++) {
        for (long v = 0; v < room; v++) links[u * room + v] = LOG_ZERO;
        for (long v = u + 1; v < n && v <= u + slack + 1; v++) {
            if ((u > 0) + (v < n - 1) > t - 2) continue; /* more inner states than a path has */
            float x = transition[u * stride + v];
            check += x != x ? x : 0.0f;
            links[u * room + v] = base2(x);
        }
    }
    for (long i = 0; i < t; i++)
        for (long v = i < t - 1 ? i : n - 1; v <= (i > 0 ? i + slack : 0); v++)
            check += emission[i * stride + v] != emission[i * stride + v] ? NAN : 0.0f;
    if (check != check) return NAN;
    double value = forward(emission, stride, links, t, n, room, alpha, total, spare);
    if (!(value > NO_PATH_BELOW)) return -INFINITY;
    if (state_posterior) {
        float *used = spare + 2 * room;
        memset(used, 0, (size_t)n * room * sizeof(float));
        backward(links, t, n, room, alpha, total, state_posterior, stride, used, spare);
        for (long u = 0; u < n; u++) memcpy(link_use + u * stride, used + u * room, n * sizeof(float));
    }
    return value * LN2;
}

/* emission [batch][targets][states], transition [batch][states][states], values [batch]; state_posterior and
 * link_use have the shapes of the inputs, are zero on entry and may be NULL. Returns 0, or 1 if memory is short. */
int exlm_alignment(const float *emission, const float *transition, const long long *num_targets,
                   const long long *num_states, double *values, float *state_posterior, float *link_use, long batch,
                   long targets, long states, int threads) {
    int failed = 0;
    size_t room = (2 * (size_t)states + 2 * (size_t)targets + 2) * ROOM((size_t)states) + 1;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *scratch = malloc(room * sizeof(float));
        failed = scratch == NULL;
#pragma omp for schedule(dynamic)
        for (long b = 0; b < batch; b++)
            if (scratch)
                values[b] = one_sequence(emission + b * targets * states, transition + b * states * states,
                                         (long)num_targets[b], (long)num_states[b], targets, states,
                                         state_posterior ? state_posterior + b * targets * states : NULL,
                                         state_posterior ? link_use + b * states * states : NULL, scratch);
        free(scratch);
    }
    return failed;
}
