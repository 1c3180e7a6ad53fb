#include "model/machine.h"
#include <cblas.h>
#include <cjson/cJSON.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef BUILD_FLAGS
#define BUILD_FLAGS "unknown"
#endif
#ifndef BUILD_GIT
#define BUILD_GIT "unknown"
#endif
#define TEXT_OF(x) TEXT_OF_(x)
#define TEXT_OF_(x) #x

void machine_cpu_name(char *text, size_t size)
{
    struct utsname u;
    snprintf(text, size, "%s", uname(&u) == 0 ? u.machine : "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    for (char line[256]; file && fgets(line, sizeof line, file); ) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(text, size, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (file) fclose(file);
}

int machine_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

int64_t machine_memory(void)
{
    int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? pages * page : 0;
}

int64_t machine_resident(void)
{
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%*d %lld", &pages) != 1) pages = 0;
        fclose(file);
    }
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

int64_t machine_peak_resident(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

double machine_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *machine_compiler(void)
{
#ifdef __clang__
    return "clang " TEXT_OF(__clang_major__) "." TEXT_OF(__clang_minor__) "." TEXT_OF(__clang_patchlevel__);
#else
    return "gcc " TEXT_OF(__GNUC__) "." TEXT_OF(__GNUC_MINOR__) "." TEXT_OF(__GNUC_PATCHLEVEL__);
#endif
}

const char *machine_flags(void) { return BUILD_FLAGS; }
const char *machine_git(void) { return BUILD_GIT; }

void machine_libraries(char *text, size_t size)
{
    snprintf(text, size, "%s (kernel %s), cJSON %s", openblas_get_config(), openblas_get_corename(),
             cJSON_Version());
}
