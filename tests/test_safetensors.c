/* The safetensors reader against files put together by hand, byte by byte, and the writer against the reader
 * and against the layout that the format prescribes. */
#include "model/files.h"
#include "model/floats.h"
#include "model/safetensors.h"
#include "model/xxh64.h"
#include "tests/temporary.h"
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- conversions ------------------------------------------------------------------------------------ */

/* The value of 16 bits by the definition of the format. */
static double value_of(unsigned bits, int fraction_bits, int bias)
{
    int last_exponent = (1 << (15 - fraction_bits)) - 1;
    int exponent = (int)(bits >> fraction_bits) & last_exponent;
    double fraction = bits & ((1u << fraction_bits) - 1), sign = bits & 0x8000 ? -1 : 1;
    if (exponent == last_exponent) return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + ldexp(1, fraction_bits), exponent - bias - fraction_bits);
}

static void check_from(float (*from)(uint16_t), int fraction_bits, int bias)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        double expected = value_of(bits, fraction_bits, bias), found = from((uint16_t)bits);
        if (isnan(expected)) assert_true(isnan(found));
        else assert_true(found == expected && signbit(found) == signbit(expected));
    }
}

/* Every value comes back; a value half-way between two neighbours goes to the even one, one a float away from
 * it to the nearer one. */
static void check_to(uint16_t (*to)(float), int fraction_bits, int bias)
{
    unsigned infinity = 0x7fff >> fraction_bits << fraction_bits;
    for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (unsigned bits = 0; bits < infinity; bits++) {
            double a = value_of(bits | sign, fraction_bits, bias);
            double next = bits + 1 < infinity ? value_of((bits + 1) | sign, fraction_bits, bias) :
                          2 * a - value_of((bits - 1) | sign, fraction_bits, bias);     /* as if it went on */
            float middle = (float)((a + next) / 2), toward = (float)next;
            assert_int_equal(to((float)a), bits | sign);
            if ((double)middle != (a + next) / 2) continue;     /* below the smallest float */
            assert_int_equal(to(middle), (bits + (bits & 1)) | sign);
            assert_int_equal(to(nextafterf(middle, (float)a)), bits | sign);
            assert_int_equal(to(nextafterf(middle, toward)), (bits + 1) | sign);
        }
        assert_int_equal(to(sign ? -INFINITY : INFINITY), infinity | sign);
    }
    assert_true(isnan(value_of(to(NAN), fraction_bits, bias)));
    assert_true(isnan(value_of(to(-NAN), fraction_bits, bias)));
}

static void test_bf16(void **state)
{
    (void)state;
    check_from(float_from_bf16, 7, 127);
    check_to(bf16_from_float, 7, 127);
}

static void test_f16(void **state)
{
    (void)state;
    check_from(float_from_f16, 10, 15);
    check_to(f16_from_float, 10, 15);
    assert_int_equal(f16_from_float(1e30f), 0x7c00);
    assert_int_equal(f16_from_float(-1e-30f), 0x8000);
}

/* Values of the reference implementation (xxhsum -H64). */
static void test_xxh64(void **state)
{
    (void)state;
    static const struct { const char *text; uint64_t hash; } known[] = {
        {"", 0xef46db3751d8e999u}, {"a", 0xd24ec4f1a98c6e5bu}, {"abc", 0x44bc2cf5ad770999u},
        {"The quick brown fox jumps over the lazy dog", 0x0b242d361fda71bcu},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].text);
        for (size_t cut = 0; cut <= length; cut++) {        /* in two pieces, wherever they meet */
            Xxh64 h;
            xxh64_begin(&h, 0);
            xxh64_add(&h, known[i].text, cut);
            xxh64_add(&h, known[i].text + cut, length - cut);
            assert_true(xxh64_end(&h) == known[i].hash);
        }
    }
}

/* ---- reading: every rejection ----------------------------------------------------------------------- */

static void write_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* u64 header length, header, data_bytes bytes 0, 1, 2, ... */
static char *write_file(const char *dir, uint64_t length, const char *header, size_t data_bytes)
{
    size_t n = strlen(header), total = 8 + n + data_bytes;
    unsigned char *bytes = malloc(total);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + n + i] = (unsigned char)i;
    char *path = files_join(dir, "x.safetensors");
    write_bytes(path, bytes, total);
    free(bytes);
    return path;
}

/* Expects that opening fails with one error that contains `text` and the path. */
static void expect_refusal(const char *path, const char *text)
{
    Errors errors = {0};
    Safetensors *st = safetensors_open(path, &errors);
    if (st || errors.count != 1 || !strstr(errors.text[0], text) || !strstr(errors.text[0], path)) {
        errors_print(&errors, stderr);
        fail_msg("expected one error with \"%s\", found %d", text, errors.count);
    }
    errors_free(&errors);
}

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_refusals(void **state)
{
    (void)state;
    char *dir = temporary_make();
    static const struct { const char *header; size_t data; const char *error; } wrong[] = {
        {"[1,2]", 0, "not a JSON object"},
        {"{\"a\":", 0, "not a JSON object"},
        {" {}", 0, "not a JSON object"},
        {"{} x", 0, "only spaces may follow"},
        {"{}\n", 0, "only spaces may follow"},
        {"{\"__metadata__\":3}", 0, "\"__metadata__\" must be an object of strings"},
        {"{\"__metadata__\":{\"step\":3}}", 0, "\"__metadata__\" must be an object of strings"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "\"__metadata__\" stands twice"},
        {"{\"a\":3}", 0, "tensor \"a\": expected exactly"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "expected exactly"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "expected exactly"},
        {"{\"a\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "expected exactly"},
        {"{" T("a", "F128", "[1]", "[0,4]") "}", 4, "dtype \"F128\" is not supported"},
        {"{" T("a", "f32", "[1]", "[0,4]") "}", 4, "dtype \"f32\" is not supported"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions"},
        {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "shape[0] is not a whole number"},
        {"{" T("a", "F32", "[1,0.5]", "[0,4]") "}", 4, "shape[1] is not a whole number"},
        {"{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "shape[0] is not a whole number"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "more than 2^63 elements"},
        {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "data_offsets must be"},
        {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, "data_offsets must be"},
        {"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "data_offsets must be"},
        {"{" T("a", "F32", "[2]", "[0,8]") "}", 7, "the file is incomplete"},
        {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, "2 elements of F32 need 8"},
        {"{" T("a", "BF16", "[3]", "[0,8]") "}", 8, "3 elements of BF16 need 6"},
        {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, "(a gap)"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12, "(a gap)"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8, "(an overlap)"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 5, "1 bytes behind the last tensor"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "\"a\" stands twice"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *path = write_file(dir, strlen(wrong[i].header), wrong[i].header, wrong[i].data);
        expect_refusal(path, wrong[i].error);
        free(path);
    }
    char *path = write_file(dir, 3, "{}", 0);
    expect_refusal(path, "it is incomplete");
    free(path);
    path = write_file(dir, 100000001, "{}", 0);
    expect_refusal(path, "the format allows 100000000");
    free(path);
    path = write_file(dir, UINT64_MAX, "{}", 0);
    expect_refusal(path, "the format allows");
    free(path);
    path = write_file(dir, 0, "", 0);
    expect_refusal(path, "not a JSON object");
    write_bytes(path, "1234567", 7);
    expect_refusal(path, "at least 8 bytes, found 7");
    unlink(path);
    expect_refusal(path, "cannot open");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refusal(path, "not a regular file");     /* nor waited for */
    expect_refusal(dir, "holds neither");
    free(path);
    temporary_remove(dir);
}

/* Offsets of 5 GiB: beyond what a 32-bit integer holds. The file is sparse. */
static void test_large_offsets(void **state)
{
    (void)state;
    char *dir = temporary_make();
    const int64_t big = (int64_t)5 << 30;
    char header[256];
    snprintf(header, sizeof header, "{" T("big", "U8", "[%" PRId64 "]", "[0,%" PRId64 "]") ","
             T("b", "F32", "[1]", "[%" PRId64 ",%" PRId64 "]") "}", big, big, big, big + 4);
    char *path = write_file(dir, strlen(header), header, 0);
    FILE *file = fopen(path, "r+b");
    float value = 1.5f, found = 0;
    assert_int_equal(fseeko(file, 8 + (off_t)strlen(header) + big, SEEK_SET), 0);
    assert_int_equal(fwrite(&value, 4, 1, file), 1);
    assert_int_equal(fclose(file), 0);
    Errors errors = {0};
    Safetensors *st = safetensors_open(path, &errors);
    errors_print(&errors, stderr);
    assert_non_null(st);
    assert_int_equal(safetensors_find(st, "big")->count, big);
    assert_true(safetensors_read(st, safetensors_find(st, "b"), 0, 1, &found, &errors));
    assert_true(found == value);
    assert_false(safetensors_read(st, safetensors_find(st, "big"), 0, 1, &found, &errors));
    assert_non_null(strstr(errors.text[0], "is U8; expected F32, BF16 or F16"));
    errors_free(&errors);
    safetensors_close(st);
    free(path);
    temporary_remove(dir);
}

/* Any order in the header, a scalar, an empty tensor, trailing spaces, ranges of elements. */
static void test_reading(void **state)
{
    (void)state;
    char *dir = temporary_make();
    const char *header = "{" T("z", "F16", "[2,3]", "[8,20]") "," T("none", "F32", "[0,7]", "[8,8]") ","
                         T("s", "F32", "[]", "[0,4]") ",\"__metadata__\":{\"format\":\"pt\"},"
                         T("a.b", "BF16", "[2]", "[4,8]") "}    ";
    char *path = write_file(dir, strlen(header), header, 20);
    Errors errors = {0};
    Safetensors *st = safetensors_open(path, &errors);
    errors_print(&errors, stderr);
    assert_non_null(st);
    assert_int_equal(st->tensor_count, 4);
    for (int i = 1; i < st->tensor_count; i++) {
        assert_true(strcmp(st->tensors[i - 1].name, st->tensors[i].name) < 0);
    }
    const SafetensorsTensor *z = safetensors_find(st, "z"), *s = safetensors_find(st, "s");
    assert_int_equal(z->dims, 2);
    assert_int_equal(z->shape[1], 3);
    assert_int_equal(s->dims, 0);
    assert_int_equal(s->count, 1);
    assert_int_equal(safetensors_find(st, "none")->count, 0);
    assert_null(safetensors_find(st, "y"));
    float values[6] = {0};
    assert_true(safetensors_read(st, z, 3, 3, values, &errors));     /* the second row */
    for (int i = 0; i < 3; i++) {
        unsigned first = (unsigned)(8 + 2 * (3 + i));
        assert_true(values[i] == (float)value_of(first | (first + 1) << 8, 10, 15));
    }
    assert_true(safetensors_read(st, safetensors_find(st, "none"), 0, 0, values, &errors));
    assert_int_equal(errors.count, 0);
    assert_false(safetensors_read(st, z, 4, 3, values, &errors));
    assert_false(safetensors_read(st, z, -1, 1, values, &errors));
    assert_int_equal(errors.count, 2);
    assert_int_equal(truncate(path, 40), 0);                        /* while it is open */
    assert_false(safetensors_read(st, z, 0, 6, values, &errors));
    assert_non_null(strstr(errors.text[2], "the file has become shorter"));
    errors_free(&errors);
    safetensors_close(st);
    free(path);
    temporary_remove(dir);
}

/* ---- writing ---------------------------------------------------------------------------------------- */

static const SafetensorsSpec specs[] = {
    {"model.a.weight", ST_F32, 2, {3, 5}},
    {"model.\"quoted\"", ST_F32, 1, {7}},
    {"empty", ST_F32, 2, {0, 4}},
    {"half.bf16", ST_BF16, 3, {1, 3, 37}},
    {"half.f16", ST_F16, 1, {40001}},       /* more than a conversion buffer */
    {"last.empty", ST_BF16, 1, {0}},
};
enum { SPECS = sizeof specs / sizeof *specs };

static int64_t count_of(const SafetensorsSpec *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->dims; d++) n *= s->shape[d];
    return n;
}

/* Exact in 11 bits and less: the same in every dtype. */
static float value_at(int tensor, int64_t i)
{
    return (float)((i * 7 + tensor * 13) % 127 - 63) * 0.25f;
}

static bool feed(SafetensorsWriter *w, int64_t step)
{
    bool ok = true;
    for (int t = 0; t < SPECS; t++) {
        int64_t count = count_of(&specs[t]);
        float *values = malloc((size_t)(count + 1) * sizeof *values);
        for (int64_t i = 0; i < count; i++) values[i] = value_at(t, i);
        for (int64_t i = 0; i < count; i += step) {
            ok = safetensors_write(w, values + i, count - i < step ? count - i : step) && ok;
        }
        free(values);
    }
    return ok;
}

static void check_content(const char *path)
{
    Errors errors = {0};
    Safetensors *st = safetensors_open(path, &errors);
    errors_print(&errors, stderr);
    assert_non_null(st);
    assert_int_equal(st->tensor_count, SPECS);
    for (int t = 0; t < SPECS; t++) {
        const SafetensorsTensor *found = safetensors_find(st, specs[t].name);
        int64_t count = count_of(&specs[t]);
        assert_non_null(found);
        assert_int_equal(found->dtype, specs[t].dtype);
        assert_int_equal(found->dims, specs[t].dims);
        assert_memory_equal(found->shape, specs[t].shape, sizeof(int64_t) * (size_t)found->dims);
        float *values = malloc((size_t)(count + 1) * sizeof *values);
        assert_true(safetensors_read(st, found, 0, count, values, &errors));
        for (int64_t i = 0; i < count; i++) assert_true(values[i] == value_at(t, i));
        free(values);
    }
    safetensors_close(st);
}

static void test_round_trip(void **state)
{
    (void)state;
    static const int64_t steps[] = {1 << 20, 17};
    for (int s = 0; s < 2; s++) {
        char *dir = temporary_make(), *path = files_join(dir, "model.safetensors");
        Errors errors = {0};
        SafetensorsWriter *w = safetensors_create(dir, "model", specs, SPECS, 0, &errors);
        assert_non_null(w);
        assert_true(feed(w, steps[s]));
        SafetensorsWritten *files;
        int count;
        assert_true(safetensors_finish(w, &files, &count, &errors));
        assert_int_equal(count, 1);
        check_content(path);
        check_content(dir);

        size_t bytes;
        char *text = files_read(path, &bytes, &errors);
        assert_int_equal(files[0].bytes, bytes);
        assert_string_equal(files[0].name, "model.safetensors");
        Xxh64 hash;
        xxh64_begin(&hash, 0);
        xxh64_add(&hash, text, bytes);
        assert_true(files[0].xxh64 == xxh64_end(&hash));
        uint64_t n;
        memcpy(&n, text, 8);
        assert_int_equal(n % 8, 0);
        assert_non_null(strstr(text + 8, "\"__metadata__\":{\"format\":\"pt\"}"));
        free(text);
        free(files);
        free(path);
        temporary_remove(dir);
    }
}

/* Shards of at most 100 bytes of data: the index leads to every tensor; a wrong index is refused. */
static void test_shards(void **state)
{
    (void)state;
    char *dir = temporary_make(), *index = files_join(dir, "model.safetensors.index.json");
    Errors errors = {0};
    SafetensorsWriter *w = safetensors_create(dir, "model", specs, SPECS, 100, &errors);
    assert_non_null(w);
    assert_true(feed(w, 1000));
    SafetensorsWritten *files;
    int count;
    assert_true(safetensors_finish(w, &files, &count, &errors));
    assert_int_equal(count, 3);         /* 60 + 28 + 0 | 222 | 80002 + 0 */
    assert_string_equal(files[1].name, "model-00002-of-00003.safetensors");
    check_content(dir);
    check_content(index);

    char *text = files_read(index, NULL, &errors);
    assert_non_null(strstr(text, "\"total_size\":\t80312"));
    char *name = strstr(text, "00003-of");
    memcpy(name, "00001-of", 8);        /* half.f16 is not in the first shard */
    write_bytes(index, text, strlen(text));
    expect_refusal(dir, "\"half.f16\" is not in model-00001-of-00003.safetensors");
    free(text);
    const char *outside = "{\"weight_map\":{\"a\":\"../x.safetensors\"}}", *odd = "{\"weight_map\":[]}";
    write_bytes(index, outside, strlen(outside));
    expect_refusal(index, "is not the name of a file beside the index");
    write_bytes(index, odd, strlen(odd));
    expect_refusal(index, "expected a JSON object with \"weight_map\"");
    const char *part = "{\"weight_map\":{\"half.bf16\":\"model-00002-of-00003.safetensors\","
                       "\"empty\":\"model-00001-of-00003.safetensors\"}}";
    write_bytes(index, part, strlen(part));
    assert_null(safetensors_open(index, &errors));
    assert_non_null(strstr(errors.text[0], "tensor \"model.\"quoted\"\" of "));
    char *single = files_join(dir, "model.safetensors");
    write_bytes(single, "", 0);
    expect_refusal(dir, "holds both");
    errors_free(&errors);
    free(single);
    free(files);
    free(index);
    temporary_remove(dir);
}

static void test_misuse(void **state)
{
    (void)state;
    char *dir = temporary_make();
    Errors errors = {0};
    float values[64] = {0};
    const SafetensorsSpec order[] = {{"a", ST_BF16, 1, {1}}, {"b", ST_F32, 1, {1}}};
    const SafetensorsSpec integers[] = {{"a", ST_I64, 1, {1}}};
    assert_null(safetensors_create(dir, "model", order, 2, 0, &errors));
    assert_null(safetensors_create(dir, "model", integers, 1, 0, &errors));
    assert_int_equal(errors.count, 2);
    SafetensorsWriter *w = safetensors_create(dir, "model", specs, SPECS, 0, &errors);
    assert_false(safetensors_write(w, values, 16));     /* across the end of a tensor */
    assert_false(safetensors_finish(w, NULL, NULL, &errors));
    w = safetensors_create(dir, "model", specs, SPECS, 0, &errors);
    assert_true(safetensors_write(w, values, 15));
    assert_false(safetensors_finish(w, NULL, NULL, &errors));
    assert_int_equal(errors.count, 4);
    assert_non_null(strstr(errors.text[3], "its tensors are not complete"));
    assert_int_equal(rmdir(dir), 0);                    /* nothing was left */
    errors_free(&errors);
    free(dir);
}

/* A limit on the size of files stands for a full disk. */
static void test_full_disk(void **state)
{
    (void)state;
    char *dir = temporary_make();
    Errors errors = {0};
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){.rlim_cur = 50000, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    SafetensorsWriter *w = safetensors_create(dir, "model", specs, SPECS, 0, &errors);
    bool created = w != NULL;
    if (w) feed(w, 1000);
    bool finished = w && safetensors_finish(w, NULL, NULL, &errors);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(created);
    assert_false(finished);
    assert_int_equal(errors.count, 1);
    assert_non_null(strstr(errors.text[0], "model.safetensors: cannot write: File too large"));
    assert_int_equal(rmdir(dir), 0);
    errors_free(&errors);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16), cmocka_unit_test(test_f16), cmocka_unit_test(test_xxh64),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_large_offsets), cmocka_unit_test(test_reading),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_shards), cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
