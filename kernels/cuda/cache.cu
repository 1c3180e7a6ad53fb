/* Files of measured choices: text, a line a choice, shared by all runs of a user. */
#include "kernels/cuda/backend.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/stat.h>

static bool make_folder(const std::string &path)
{
    for (size_t at = 1; at <= path.size(); at++)
        if (at == path.size() || path[at] == '/')
            if (mkdir(path.substr(0, at).c_str(), 0777) && errno != EEXIST) return false;
    return true;
}

std::string cache_file(CudaBackend *backend, const char *kind)
{
    const char *folder = backend->options.cache_dir;
    if (!folder) return "";
    if (!make_folder(folder)) {
        fprintf(stderr, "note: %s cannot be made (%s): each start measures again which kernels are fastest\n", folder,
                strerror(errno));
        backend->options.cache_dir = nullptr;
        return "";
    }
    std::string gpu = backend->gpu;
    for (char &c : gpu)
        if (!isalnum((unsigned char)c)) c = '-';
    return std::string(folder) + "/" + kind + "-" + gpu + "-cublaslt-" + std::to_string(cublasLtGetVersion()) +
           ".txt";
}

std::string cache_read(const std::string &file)
{
    std::string text;
    char buffer[4096];
    FILE *f = file.empty() ? nullptr : fopen(file.c_str(), "rb");
    if (!f) return text;
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;) text.append(buffer, n);
    fclose(f);
    std::replace(text.begin(), text.end(), '\0', '\n');     /* what a lost disk block leaves */
    return text;
}

void cache_append(std::string *file, const std::string &line)
{
    if (file->empty()) return;
    std::string text = "\n" + line + "\n";
    FILE *f = fopen(file->c_str(), "ab");
    bool kept = f && fwrite(text.data(), 1, text.size(), f) == text.size();
    if (f && fclose(f)) kept = false;
    if (kept) return;
    fprintf(stderr, "note: %s cannot be written (%s): the next start measures again\n", file->c_str(),
            strerror(errno));
    file->clear();
}
