// model.cpp: slow and simple on purpose.
#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace model {
namespace {

constexpr int kGroup = 128;

// Draws numbers from a seed.
class Dice {
   public:
    explicit Dice(std::uint64_t seed) : seed_(seed) {}
    std::uint64_t next() { return mix(seed_, ++drawn_); }
    int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }

   private:
    std::uint64_t seed_;
    std::uint64_t drawn_ = 0;
};

float float_of(std::uint16_t bf16) {
    const std::uint32_t bits = static_cast<std::uint32_t>(bf16) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The nearer of the two bf16 neighbours, the even one in the middle. Finite values only.
std::uint16_t bf16_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const auto toward_zero = static_cast<std::uint16_t>(bits >> 16);
    const auto away = static_cast<std::uint16_t>(toward_zero + 1);
    const double below = std::fabs(static_cast<double>(value) - float_of(toward_zero));
    const double above = std::fabs(static_cast<double>(float_of(away)) - value);
    if (below != above) return below < above ? toward_zero : away;
    return toward_zero % 2 == 0 ? toward_zero : away;
}

// A bf16 between 2^-13 and 2^7, of either sign.
std::uint16_t any_bf16(std::uint64_t bits) {
    const auto sign = static_cast<std::uint16_t>(bits & 0x8000u);
    const auto exponent = static_cast<std::uint16_t>(114 + (bits >> 20) % 20);
    return static_cast<std::uint16_t>(sign | exponent << 7 | (bits & 0x7fu));
}

double e4m3_value(int code) {
    const int exponent = code >> 3, mantissa = code & 7;
    return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// The nearest code, the even one in the middle, the largest finite one beyond the end.
std::uint8_t e4m3_of(float value) {
    const double magnitude = std::fabs(static_cast<double>(value));
    int code = 0;
    while (code < 126 && e4m3_value(code + 1) <= magnitude) ++code;
    if (code < 126) {
        const double below = magnitude - e4m3_value(code), above = e4m3_value(code + 1) - magnitude;
        if (above < below || (above == below && code % 2 == 1)) ++code;
    }
    return static_cast<std::uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

// The smallest power of two that is not below `value`, as an exponent.
int exponent_above(float value) {
    int exponent;
    return std::frexp(value, &exponent) == 0.5f ? exponent - 1 : exponent;
}

void encode_group(
    const Sizes& sizes, const std::uint16_t* x, int group, std::uint8_t* row, std::uint32_t* scales) {
    float amax = 1e-4f;
    for (int i = 0; i < kGroup; ++i) amax = std::max(amax, std::fabs(float_of(x[i])));
    float inverse = amax / 448.0f, forward = 448.0f / amax;
    const int exponent = exponent_above(inverse);
    if (sizes.format != Format::fp8) inverse = std::ldexp(1.0f, exponent);
    if (sizes.format != Format::fp8) forward = std::ldexp(1.0f, -exponent);
    for (int i = 0; i < kGroup; ++i) row[i] = e4m3_of(float_of(x[i]) * forward);
    if (sizes.format == Format::fp8_ue8m0)
        scales[group / 4] |= static_cast<std::uint32_t>(exponent + 127) << group % 4 * 8;
    else
        std::memcpy(&scales[group], &inverse, sizeof inverse);
}

void encode(const Sizes& sizes, Tokens& tokens) {
    tokens.rows.resize(static_cast<std::size_t>(tokens.count * sizes.row_bytes()));
    tokens.scales.assign(static_cast<std::size_t>(tokens.count * sizes.scale_words()), 0);
    if (sizes.format == Format::bf16) {
        if (tokens.count > 0) std::memcpy(tokens.rows.data(), tokens.x.data(), tokens.rows.size());
        return;
    }
    for (int token = 0; token < tokens.count; ++token) {
        for (int group = 0; group < sizes.hidden / kGroup; ++group) {
            const int at = token * sizes.hidden + group * kGroup;
            encode_group(sizes, &tokens.x[static_cast<std::size_t>(at)], group,
                         &tokens.rows[static_cast<std::size_t>(at)],
                         &tokens.scales[static_cast<std::size_t>(token * sizes.scale_words())]);
        }
    }
}

Sizes make_sizes(Dice& dice, int ranks) {
    Sizes sizes{};
    sizes.ranks = ranks;
    sizes.experts = ranks * (1 + dice.below(3));
    sizes.max_tokens =
        1 + dice.below(20);  // more than 16 rows an expert: the scales of whole lines are turned
    sizes.topk = 1 + dice.below(std::min(sizes.experts, 4));
    sizes.format = static_cast<Format>(dice.below(4));
    const int odd_sizes[] = {72, 128, 200, 384};
    sizes.hidden = sizes.format == Format::bf16 ? odd_sizes[dice.below(4)] : kGroup * (1 + dice.below(5));
    return sizes;
}

// Every fourth rank has no tokens, every fourth as many as allowed.
Tokens make_tokens(Dice& dice, const Sizes& sizes) {
    Tokens tokens{};
    const int kind = dice.below(4);
    tokens.count = kind == 0 ? 0 : kind == 1 ? sizes.max_tokens : dice.below(sizes.max_tokens + 1);
    for (int i = 0; i < tokens.count * sizes.hidden; ++i) tokens.x.push_back(any_bf16(dice.next()));
    for (int token = 0; token < tokens.count; ++token) {
        const auto first = static_cast<std::ptrdiff_t>(tokens.experts.size());
        while (static_cast<int>(tokens.experts.size()) < (token + 1) * sizes.topk) {
            const int expert = dice.below(8) == 0 ? -1 : dice.below(sizes.experts);
            const auto begin = tokens.experts.begin() + first;
            if (expert >= 0 && std::find(begin, tokens.experts.end(), expert) != tokens.experts.end())
                continue;
            tokens.experts.push_back(expert);
            tokens.weights.push_back(float_of(any_bf16(dice.next())) + 0.001f);
        }
    }
    encode(sizes, tokens);
    return tokens;
}

}  // namespace

std::uint64_t mix(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    std::uint64_t z = 0;
    for (const std::uint64_t part : {a, b, c}) {
        z += part + 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
    }
    return z;
}

Round make_round(std::uint64_t seed, int ranks) {
    Dice dice(seed);
    Round round{make_sizes(dice, ranks), {}, {}};
    for (int rank = 0; rank < ranks; ++rank) round.tokens.push_back(make_tokens(dice, round.sizes));
    round.arrivals.resize(static_cast<std::size_t>(round.sizes.experts));
    for (int source = 0; source < ranks; ++source) {
        const Tokens& tokens = round.tokens[static_cast<std::size_t>(source)];
        for (std::size_t i = 0; i < tokens.experts.size(); ++i) {
            if (tokens.experts[i] < 0) continue;
            const int token = static_cast<int>(i) / round.sizes.topk;
            round.arrivals[static_cast<std::size_t>(tokens.experts[i])].push_back({source, token});
        }
    }
    return round;
}

std::vector<std::uint16_t> output(const Round& round, const Answer& answer, int expert, Arrival row) {
    const auto place =
        static_cast<std::uint64_t>((expert * round.sizes.ranks + row.source) * 4096 + row.token);
    Dice dice(mix(answer.key, place));
    std::vector<std::uint16_t> values(static_cast<std::size_t>(round.sizes.hidden));
    for (std::uint16_t& value : values) value = any_bf16(dice.next());
    return values;
}

std::vector<std::int32_t> kept_choices(const Round& round, const Answer& answer, int rank) {
    std::vector<std::int32_t> choices = round.tokens[static_cast<std::size_t>(rank)].experts;
    Dice dice(mix(answer.key, static_cast<std::uint64_t>(rank), 1));
    for (std::int32_t& choice : choices)
        if (dice.below(8) == 0) choice = -1;
    return choices;
}

std::vector<std::uint16_t> combined(const Round& round,
                                    const Answer& answer,
                                    int rank,
                                    const std::vector<std::int32_t>& choices) {
    const Tokens& tokens = round.tokens[static_cast<std::size_t>(rank)];
    const auto hidden = static_cast<std::size_t>(round.sizes.hidden);
    std::vector<float> sums(static_cast<std::size_t>(tokens.count) * hidden, 0.0f);
    for (std::size_t i = 0; i < choices.size(); ++i) {
        if (choices[i] < 0) continue;
        const int token = static_cast<int>(i) / round.sizes.topk;
        const std::vector<std::uint16_t> row = output(round, answer, choices[i], {rank, token});
        float* sum = &sums[static_cast<std::size_t>(token) * hidden];
        for (std::size_t h = 0; h < hidden; ++h)
            sum[h] = std::fma(tokens.weights[i], float_of(row[h]), sum[h]);
    }
    std::vector<std::uint16_t> result;
    for (const float sum : sums) result.push_back(bf16_of(sum));
    return result;
}

}  // namespace model
