// An in-memory image registry, by plain HTTP, with the user and password of its environment variables.
package main

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	// The parent process reads the address.
	fmt.Println(listener.Addr())
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	same := func(one, other string) bool { return subtle.ConstantTimeCompare([]byte(one), []byte(other)) == 1 }
	log.Fatal(http.Serve(listener, http.HandlerFunc(func(answer http.ResponseWriter, asked *http.Request) {
		name, password, _ := asked.BasicAuth()
		if !same(name, os.Getenv("REGISTRY_USER")) || !same(password, os.Getenv("REGISTRY_PASSWORD")) {
			answer.Header().Set("WWW-Authenticate", `Basic realm="images"`)
			http.Error(answer, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(answer, asked)
	})))
}
