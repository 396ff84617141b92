/* expert_share.c - division of experts between a link and a CPU. */
#include "libcommon/plan/expert_share.h"

int expert_share(int n, double link, double cpu)
{
    int best = 0;
    double least = n / cpu;
    for (int i = 1; i <= n; i++) {
        const double up = i / link, here = (n - i) / cpu, end = up > here ? up : here;
        if (end < least) {
            least = end;
            best = i;
        }
    }
    return best;
}

/* The index of speeds of steps of n_tokens tokens. */
static int size_of(int n_tokens)
{
    int i = 0;
    while (i < SHARE_SIZES - 1 && 1 << i < n_tokens)
        i++;
    return i;
}

int shares_divide(struct expert_shares *s, int n, int n_tokens)
{
    const double cpu = s->cpu[size_of(n_tokens)];
    if (s->link <= 0 || cpu <= 0)
        return n / 2;
    int up = expert_share(n, s->link, cpu);
    if (n > 1 && (up == 0 || up == n) && ++s->n_without >= SHARE_PROBE) {
        s->n_without = 0;
        up += up == 0 ? 1 : -1;
    }
    return up;
}

/* Later measurements count more, but a single one that was disturbed does not. */
static void learn(double *speed, double bytes, double seconds)
{
    if (bytes <= 0 || seconds <= 0)
        return;
    *speed += (bytes / seconds - *speed) / (*speed > 0 ? 8 : 1);
}

void shares_learn_link(struct expert_shares *s, double bytes, double seconds) { learn(&s->link, bytes, seconds); }

void shares_learn_cpu(struct expert_shares *s, int n_tokens, double bytes, double seconds)
{
    learn(&s->cpu[size_of(n_tokens)], bytes, seconds);
}

void shares_learn_products(struct expert_shares *s, int n_tokens, double bytes, double seconds)
{
    learn(&s->products[size_of(n_tokens)], bytes, seconds);
}

struct expert_speeds shares_speeds(const struct expert_shares *s)
{
    struct expert_speeds v = { .link = s->link };
    for (int i = 0; i < SHARE_SIZES; i++) {
        v.read = s->cpu[i] > v.read ? s->cpu[i] : v.read;
        v.products = i >= SHARE_MANY && s->products[i] > v.products ? s->products[i] : v.products;
    }
    return v;
}

void experts_first(int *id, int n, int n_first, const float *count)
{
    for (int i = 0; i < n_first; i++) {
        int best = i;
        for (int k = i + 1; k < n; k++)
            best = count[id[k]] > count[id[best]] ? k : best;
        const int x = id[best];
        for (int k = best; k > i; k--)
            id[k] = id[k - 1];
        id[i] = x;
    }
}
